/** The theme: the system's, until the user chooses one. */

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
      // Without storage the choice lasts for this visit.
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
