"use strict";
// Sort a table by a click on a column's title.
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const key = (row) => {
        const cell = row.cells[column];
        const text = cell.dataset.v ?? cell.textContent;
        return text === "" ? null : isNaN(text) ? text : Number(text);
      };
      const rows = [...table.tBodies[0].rows].map((row) => [key(row), row]);
      rows.sort(([a], [b]) => {
        if (a === null || b === null) return (a === null) - (b === null); // empty cells come last
        const order = typeof a === typeof b ? (a < b ? -1 : a > b ? 1 : 0) : typeof a === "number" ? -1 : 1;
        return up ? order : -order;
      });
      table.tBodies[0].append(...rows.map(([, row]) => row));
    });
  });
}
// Brush parallel coordinates: drag along an axis to choose trials, click it to clear.
for (const chart of document.querySelectorAll("svg.parallel")) {
  const lines = [...chart.querySelectorAll("polyline")].map((line) => ({
    line, ys: line.getAttribute("points").split(" ").map((point) => Number(point.split(",")[1])),
  }));
  const rows = new Map();
  for (const row of chart.closest("section").querySelectorAll("tr[data-trial]")) rows.set(row.dataset.trial, row);
  const ranges = new Map(), shown = chart.closest("div").querySelector(".brush-count");
  const apply = () => {
    let count = 0;
    for (const { line, ys } of lines) {
      const inside = [...ranges].every(([axis, [low, high]]) => ys[axis] >= low && ys[axis] <= high);
      line.classList.toggle("out", !inside);
      rows.get(line.dataset.trial)?.classList.toggle("out", !inside);
      count += inside;
    }
    shown.textContent = ranges.size ? `${count} of ${lines.length} trials are chosen, here and in the table below.` : "";
  };
  for (const brush of chart.querySelectorAll("rect.brush")) {
    const axis = Number(brush.dataset.axis);
    let start = null, box = null;
    const at = (event) => new DOMPoint(event.clientX, event.clientY).matrixTransform(chart.getScreenCTM().inverse()).y;
    const draw = (event) => {
      const ends = [start, at(event)].sort((a, b) => a - b);
      if (ends[1] - ends[0] < 3) { ranges.delete(axis); box?.remove(); box = null; apply(); return; }
      if (!box) {
        box = document.createElementNS("http://www.w3.org/2000/svg", "rect");
        box.setAttribute("class", "brushed");
        for (const name of ["x", "width"]) box.setAttribute(name, brush.getAttribute(name));
        chart.append(box);
      }
      box.setAttribute("y", ends[0]);
      box.setAttribute("height", ends[1] - ends[0]);
      ranges.set(axis, ends);
      apply();
    };
    brush.addEventListener("pointerdown", (event) => { start = at(event); brush.setPointerCapture(event.pointerId); draw(event); });
    brush.addEventListener("pointermove", (event) => { if (start !== null) draw(event); });
    brush.addEventListener("pointerup", () => { start = null; });
    brush.addEventListener("pointercancel", () => { start = null; });
  }
}
