// Click a heading to sort the table by it; the page reads as well without this.
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  const [upper, lower] = table.tHead.rows;
  const headings = [...upper.querySelectorAll("[rowspan]"), ...lower.cells];
  const key = (row, column) => {
    const cell = row.cells[column];
    const value = cell.dataset.value ?? cell.textContent.trim();
    return value === "-" ? null : isNaN(value) ? value : Number(value);
  };
  const compare = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b)));
  headings.forEach((heading, column) => {
    const button = document.createElement("button");
    button.textContent = heading.textContent;
    heading.replaceChildren(button);
    button.addEventListener("click", () => {
      const sign = heading.getAttribute("aria-sort") === "ascending" ? -1 : 1;
      headings.forEach((other) => other.removeAttribute("aria-sort"));
      heading.setAttribute("aria-sort", sign === 1 ? "ascending" : "descending");
      const rows = [...body.rows].map((row) => [key(row, column), row]);
      // What is not known comes last, whichever the direction.
      rows.sort(([a], [b]) => (a === null ? 1 : 0) - (b === null ? 1 : 0) || (a === null ? 0 : sign * compare(a, b)));
      body.append(...rows.map(([, row]) => row));
    });
  });
}
