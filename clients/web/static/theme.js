// Runs before the first paint, so that a chosen theme never flashes. Only a word is kept: light or dark.
try {
  const chosen = localStorage.getItem("turnwire.theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch {
  // Storage may be forbidden; the system's theme it is then.
}
