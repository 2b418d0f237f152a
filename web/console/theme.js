// Runs before the first paint, so that the page does not change its colours after it.
(() => {
  let chosen = "system";
  try {
    chosen = localStorage.getItem("latchgate.theme") ?? "system";
  } catch {
    // A browser without storage uses the theme of the system.
  }
  if (chosen !== "system") document.documentElement.dataset.theme = chosen;
})();
