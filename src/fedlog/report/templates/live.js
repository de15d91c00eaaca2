"use strict";
// Asks the local server whether records have grown, and puts the new page in place of the old one.
(() => {
  const EVERY = 1000;
  let version = document.body.dataset.version;

  async function look() {
    const state = document.querySelector(".live");
    try {
      const found = await (await fetch(`version${document.body.dataset.query}`, { cache: "no-store" })).text();
      state.classList.remove("lost");
      if (found !== version) await replace(found);
    } catch {
      state.classList.add("lost");
      state.textContent = "the server has ended";
    }
    window.setTimeout(look, EVERY);
  }

  async function replace(found) {
    const text = await (await fetch(window.location.href, { cache: "no-store" })).text();
    const fresh = new DOMParser().parseFromString(text, "text/html");
    const off = fedlogPage.switchedOff();
    const open = [...document.querySelectorAll("details")].map((part) => part.open);
    for (const place of ["header", "nav.contents", "main"]) {
      const [old, next] = [document.querySelector(place), fresh.querySelector(place)];
      if (old && next) old.replaceWith(next);
    }
    document.querySelectorAll("details").forEach((part, at) => { part.open = open[at] ?? part.open; });
    document.title = fresh.title;
    version = found;
    fedlogPage.start(off);
  }

  window.setTimeout(look, EVERY);
})();
