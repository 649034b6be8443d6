// Runs before the first paint, so that a chosen theme does not flash. The stored value is `light` or `dark`.
try {
  const chosen = localStorage.getItem("turnwire.theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch {
  // Without storage the system's theme is used.
}
