"use strict";
// Everything is readable without this script: it adds details of points, and buttons to copy.
for (const button of document.querySelectorAll("button.copy")) {
  button.hidden = false;
  button.addEventListener("click", async () => {
    const code = button.parentElement.querySelector("pre");
    const lines = [...code.querySelectorAll("code")].map((line) => line.textContent);
    try {
      await navigator.clipboard.writeText(lines.join("\n"));
    } catch {
      getSelection().selectAllChildren(code);
      document.execCommand("copy");
    }
    button.textContent = "copied";
    setTimeout(() => { button.textContent = "copy"; }, 1500);
  });
}
// A line of code is wrapped between its words, not at a hyphen of an option.
const words = (line) => line.split(" ").flatMap((word, k) => {
  const span = document.createElement("span");
  span.textContent = word;
  return k ? [" ", span] : [span];
});
const plot = document.querySelector(".plot");
if (plot) {
  const rows = [...document.querySelectorAll("tr[data-point]")];
  const fields = [...document.querySelectorAll("[data-field]")];
  const widths = [...document.querySelectorAll(".widths li")];
  let shown = Math.max(0, rows.findIndex((row) => row.dataset.selected));
  const show = (number) => {
    shown = Math.min(Math.max(number, 0), rows.length - 1);
    const row = rows[shown];
    for (const field of fields) {
      if (field.dataset.field !== "code") {
        field.textContent = row.cells[field.dataset.field].textContent;
      } else if (row.dataset.code) {
        field.replaceChildren(...words(row.dataset.code));
      }
    }
    const kept = row.dataset.widths ? row.dataset.widths.split(" ") : [];
    widths.forEach((item, k) => {
      if (!kept.length) return;
      item.querySelector("b").textContent = kept[k];
      item.querySelector(".fill").style.width = `${100 * kept[k] / item.dataset.channels}%`;
    });
    for (const chart of plot.querySelectorAll("svg")) {
      const spot = chart.querySelector(`[data-point="${shown}"]`);
      const [x, y] = [spot.getAttribute("cx"), spot.getAttribute("cy")];
      chart.querySelector(".at circle").setAttribute("cx", x);
      chart.querySelector(".at circle").setAttribute("cy", y);
      chart.querySelector(".at path").setAttribute("d", `M${x} ${y}V226`);
    }
  };
  const nearest = (chart, x) => {
    const spots = [...chart.querySelectorAll("[data-point]")];
    const far = (spot) => {
      const box = spot.getBoundingClientRect();
      return Math.abs(box.left + box.width / 2 - x);
    };
    return Number(spots.reduce((a, b) => (far(b) < far(a) ? b : a)).dataset.point);
  };
  for (const chart of plot.querySelectorAll("svg")) {
    for (const kind of ["pointermove", "pointerdown"]) {
      chart.addEventListener(kind, (event) => show(nearest(chart, event.clientX)));
    }
  }
  plot.tabIndex = 0;
  plot.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: 1, ArrowRight: -1 }[event.key];
    if (!step || event.target !== plot) return;
    event.preventDefault();
    show(shown + step);
  });
  document.querySelector(".hint").hidden = false;
  show(shown);
}
