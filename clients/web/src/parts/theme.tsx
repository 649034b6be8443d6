/** Dark or light: as the system says, until somebody chooses. */

import { useState } from "preact/hooks";
import { IconButton } from "../icons.tsx";

const isDark = (): boolean => {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
};

export function ThemeButton() {
  const [dark, setDark] = useState(isDark);
  const toggle = () => {
    const theme = dark ? "light" : "dark";
    document.documentElement.dataset.theme = theme;
    try {
      localStorage.setItem("turnwire.theme", theme);
    } catch {
      // It holds for this visit then.
    }
    setDark(!dark);
  };
  return (
    <IconButton
      name={dark ? "sun" : "moon"}
      label={dark ? "Light colours" : "Dark colours"}
      testid="theme"
      onClick={toggle}
    />
  );
}
