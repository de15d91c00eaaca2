"use strict";
// Asks the local server whether records have grown, and puts the new page in place of the old one.
(() => {
  const EVERY = 1000;
  let version = document.body.dataset.version;

  async function look() {
    try {
      const found = await read("version");
      if (found !== version) await replace(found);
      document.querySelector(".live").textContent = "live";
      document.querySelector(".live").classList.remove("lost");
    } catch {
      const state = document.querySelector(".live");
      state.classList.add("lost");
      state.textContent = "not live: fedlog watch has ended";
    }
    window.setTimeout(look, EVERY);
  }

  async function read(address) {
    const answer = await fetch(address, { cache: "no-store" });
    if (!answer.ok) throw new Error(answer.statusText);
    return answer.text();
  }

  async function replace(found) {
    const fresh = new DOMParser().parseFromString(await read(window.location.pathname), "text/html");
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
