"use strict";
// Values under the pointer, lines that can be switched off, and folded parts that open for print.
const fedlogPage = (() => {
  const NEAR = 32;

  const visible = (series) => !series.classList.contains("off");

  const identity = (y) => y;
  const heights = new WeakMap(); // how a plot moves the heights it was drawn with

  function pointsOf(svg) {
    const move = heights.get(svg) ?? identity;
    const floor = svg.dataset.levels ? Number(svg.dataset.levels.split(" ")[3]) : Infinity; // what lies below is cut off
    const found = [];
    for (const series of svg.querySelectorAll("[data-points]")) {
      if (!visible(series)) continue;
      for (const [x, y, text] of JSON.parse(series.dataset.points)) found.push([x, Math.min(move(y), floor), text]);
    }
    return found;
  }

  // The levels of what is visible: as wide as the lines that are left need.
  function levelsOf(svg, low, high, top, bottom) {
    const ys = [];
    for (const series of svg.querySelectorAll("[data-points]")) {
      if (!visible(series)) continue;
      const own = JSON.parse(series.dataset.points).map((point) => point[1]).sort((a, b) => a - b);
      // Of a line the first, steep rounds may lie below the axis, as on the page as it was written.
      ys.push(...(series.querySelector(".line") ? own.slice(0, Math.max(1, Math.ceil(own.length * 0.75))) : own));
    }
    for (const bar of svg.querySelectorAll("[data-ends]")) {
      if (visible(bar.closest("[data-key]"))) ys.push(...bar.dataset.ends.split(" ").map(Number));
    }
    for (const rule of svg.querySelectorAll("[data-height]")) if (visible(rule)) ys.push(Number(rule.dataset.height));
    if (!ys.length) return null;
    const value = (y) => high - ((y - top) / (bottom - top)) * (high - low);
    const [least, most] = [value(Math.max(...ys)), value(Math.min(...ys))];
    const rough = Math.max(most - least, 1e-6) / 5;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 2.5, 5, 10].map((each) => each * power).find((each) => each >= rough * 0.999);
    const first = Math.floor(least / step + 1e-6);
    const last = Math.max(Math.ceil(most / step - 1e-6), first + 1);
    const marks = [];
    for (let at = first; at <= last; at += 1) marks.push(at * step);
    const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9)) + (Math.abs(step / power - 2.5) < 1e-9 ? 1 : 0);
    return { marks, digits };
  }

  function scale(svg) {
    if (!svg.dataset.levels) return;
    const [low, high, top, bottom, left, right] = svg.dataset.levels.split(" ").map(Number);
    const everything = ![...svg.querySelectorAll("[data-key]")].some((part) => !visible(part));
    const found = everything ? null : levelsOf(svg, low, high, top, bottom);
    const original = svg.querySelectorAll(".level-mark:not(.moved)");
    for (const mark of svg.querySelectorAll(".level-mark.moved")) mark.remove();
    for (const mark of original) mark.classList.toggle("off", Boolean(found));
    if (found) {
      const [newLow, newHigh] = [found.marks[0], found.marks.at(-1)];
      const place = (value) => top + ((newHigh - value) / (newHigh - newLow)) * (bottom - top);
      heights.set(svg, (y) => place(high - ((y - top) / (bottom - top)) * (high - low)));
      const model = original[0];
      for (const value of found.marks) {
        const mark = model.cloneNode(true);
        mark.classList.remove("off");
        mark.classList.add("moved");
        mark.querySelector("path").setAttribute("d", `M${left} ${place(value)}H${right}`);
        mark.querySelector("text").setAttribute("y", place(value) + 4);
        mark.querySelector("text").textContent = value.toFixed(found.digits).replace(/^-0$/, "0");
        model.before(mark);
      }
    } else {
      heights.delete(svg);
    }
    redraw(svg, heights.get(svg) ?? identity, left, right, bottom);
  }

  function redraw(svg, move, left, right, bottom) {
    for (const series of svg.querySelectorAll("[data-points]")) {
      const line = series.querySelector(".line");
      if (line) line.setAttribute("d", `M${JSON.parse(series.dataset.points).map(([x, y]) => `${x} ${move(y)}`).join("L")}`);
    }
    for (const mark of svg.querySelectorAll("[data-at]")) {
      const [x, y, size] = mark.dataset.at.split(" ").map(Number);
      mark.setAttribute("transform", `translate(${x} ${move(y)}) scale(${size})`);
      mark.classList.toggle("off", move(y) > bottom + 1);
    }
    for (const bar of svg.querySelectorAll("[data-ends]")) {
      const [low, high] = bar.dataset.ends.split(" ").map((y) => move(Number(y)));
      const x = Number(bar.dataset.x);
      const ends = bar.classList.contains("bar") ? `M${x - 4} ${low}h8M${x - 4} ${high}h8` : "";
      bar.setAttribute("d", `M${x} ${low}V${high}${ends}`);
    }
    for (const rule of svg.querySelectorAll("[data-height]")) {
      const y = move(Number(rule.dataset.height));
      rule.querySelector("path").setAttribute("d", `M${left} ${y}H${right}`);
      rule.querySelector("text").setAttribute("y", rule.dataset.below ? y + 14 : y - 5);
    }
  }

  function show(svg, point) {
    const figure = svg.closest("figure");
    const tip = figure.querySelector(".tip");
    const mark = svg.querySelector(".under");
    if (!point) {
      tip.hidden = true;
      mark.setAttribute("visibility", "hidden");
      return;
    }
    mark.setAttribute("visibility", "visible");
    mark.setAttribute("cx", point[0]);
    mark.setAttribute("cy", point[1]);
    tip.textContent = point[2];
    tip.hidden = false;
    const box = svg.getBoundingClientRect();
    const around = figure.getBoundingClientRect();
    const size = box.width / svg.viewBox.baseVal.width;
    const half = tip.offsetWidth / 2;
    const x = box.left - around.left + point[0] * size;
    tip.style.left = `${Math.min(Math.max(x, half + 4), around.width - half - 4)}px`;
    tip.style.top = `${box.top - around.top + point[1] * size}px`;
  }

  function nearest(svg, event) {
    const box = svg.getBoundingClientRect();
    const size = svg.viewBox.baseVal.width / box.width;
    const x = (event.clientX - box.left) * size;
    const y = (event.clientY - box.top) * size;
    let best = null;
    let least = NEAR * NEAR;
    for (const point of pointsOf(svg)) {
      const far = (point[0] - x) ** 2 + (point[1] - y) ** 2;
      if (far < least) [best, least] = [point, far];
    }
    return best;
  }

  function walk(svg, event) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const points = pointsOf(svg);
    if (!points.length) return;
    const at = (Number(svg.dataset.place ?? (step > 0 ? -1 : 0)) + step + points.length) % points.length;
    svg.dataset.place = at;
    show(svg, points[at]);
  }

  function listen(svg) {
    svg.addEventListener("pointermove", (event) => show(svg, nearest(svg, event)));
    svg.addEventListener("pointerdown", (event) => show(svg, nearest(svg, event)));
    svg.addEventListener("pointerleave", () => show(svg, null));
    svg.addEventListener("keydown", (event) => walk(svg, event));
    svg.addEventListener("blur", () => show(svg, null));
  }

  function press(button, on) {
    const group = button.closest("[data-group]");
    button.setAttribute("aria-pressed", String(on));
    for (const part of group.querySelectorAll("svg [data-key]")) {
      if (part.dataset.key === button.dataset.key) part.classList.toggle("off", !on);
    }
    for (const svg of group.querySelectorAll("svg[data-plot]")) scale(svg);
  }

  const nameOf = (button) => `${button.closest("[data-group]").dataset.group}/${button.dataset.key}`;

  function start(off = new Set()) {
    for (const svg of document.querySelectorAll("svg[data-plot]")) listen(svg);
    for (const button of document.querySelectorAll(".legend button")) {
      button.addEventListener("click", () => press(button, button.getAttribute("aria-pressed") !== "true"));
      if (off.has(nameOf(button))) press(button, false);
    }
  }

  const switchedOff = () =>
    new Set([...document.querySelectorAll('.legend button[aria-pressed="false"]')].map(nameOf));

  window.addEventListener("beforeprint", () => {
    for (const part of document.querySelectorAll("details")) part.open = true;
  });
  return { start, switchedOff };
})();
fedlogPage.start();
