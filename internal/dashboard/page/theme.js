// Which colours the page has. It runs before the first paint, so that a dark page never flashes white.
{
  const root = document.documentElement,
    system = matchMedia("(prefers-color-scheme: dark)");
  const chosen = () => {
    try {
      return localStorage.getItem("theme") || "system";
    } catch {
      return "system";
    }
  };
  const apply = () => {
    root.dataset.theme = chosen() !== "system" ? chosen() : system.matches ? "dark" : "light";
    root.dispatchEvent(new Event("theme"));
  };
  apply();
  system.addEventListener("change", apply);
  document.addEventListener("DOMContentLoaded", () => {
    const select = document.getElementById("theme");
    select.value = chosen();
    select.addEventListener("input", () => {
      try {
        localStorage.setItem("theme", select.value);
      } catch {
        /* not kept */
      }
      apply();
    });
  });
}
