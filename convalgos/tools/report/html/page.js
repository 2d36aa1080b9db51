"use strict";

// --- charts: as wide as there is room, and as wide as paper while printing ---

const PAPER = 660; // pixels between the margins of a page

for (const figure of document.querySelectorAll(".chart")) {
  const { data, layout } = JSON.parse(figure.querySelector("script").textContent);
  const touch = matchMedia("(pointer: coarse)").matches; // a finger scrolls the page, not the chart
  const options = { responsive: true, displaylogo: false, displayModeBar: false };
  Plotly.newPlot(figure.querySelector(".plot"), data, { ...layout, dragmode: touch ? false : "zoom" }, options);
}

function widths(of) {
  for (const plot of document.querySelectorAll(".plot")) {
    plot.style.width = of === null ? "" : `${of}px`;
    Plotly.relayout(plot, { width: of === null ? plot.clientWidth : of, autosize: of === null });
  }
}

addEventListener("beforeprint", () => widths(PAPER));
addEventListener("afterprint", () => widths(null));

// --- tables: a press on a heading sorts, once more turns it round; words filter ---

function order(cell) {
  const number = parseFloat(cell.dataset.order);
  return Number.isNaN(number) ? cell.textContent.trim() : number;
}

function compare(a, b) {
  if (typeof a === "number" && typeof b === "number") return a - b;
  return String(a).localeCompare(String(b), "en", { numeric: true });
}

function sort(table, column, direction) {
  const body = table.tBodies[0];
  const rows = [...body.rows].map((row) => [order(row.cells[column]), row]);
  // What is not there comes last in either direction.
  rows.sort(([a], [b]) => (a === "") - (b === "") || direction * compare(a, b));
  body.append(...rows.map(([, row]) => row));
}

for (const block of document.querySelectorAll(".table")) {
  const table = block.querySelector("table");
  const headings = [...table.tHead.rows[0].cells];
  const told = block.querySelector("output");

  function filter(words) {
    let shown = 0;
    for (const row of table.tBodies[0].rows) {
      const text = [...row.cells].map((cell) => cell.textContent).join(" ").toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
      shown += !row.hidden;
    }
    told.textContent = `${shown} of ${table.tBodies[0].rows.length} rows`;
  }

  headings.forEach((heading, column) => {
    heading.querySelector("button").addEventListener("click", () => {
      const direction = heading.ariaSort === "ascending" ? -1 : 1;
      for (const other of headings) other.ariaSort = "none";
      heading.ariaSort = direction > 0 ? "ascending" : "descending";
      sort(table, column, direction);
    });
  });
  if (told === null) continue; // too few rows to filter
  block.querySelector("input").addEventListener("input", (event) => {
    filter(event.target.value.toLowerCase().split(/\s+/).filter(Boolean));
  });
  filter([]);
}
