// The theme that was chosen on the chat page, the menu on narrow screens, and the search. The pages work without it.
const MOST = 12;
const top_ = document.currentScript.dataset.top;

try {
  const theme = localStorage.getItem("turnwire.theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch {
  // Without storage the system's theme is used.
}

if (matchMedia("(max-width: 800px)").matches) document.querySelector(".menu").open = false;

const box = document.querySelector("search");
const input = box.querySelector("input");
const list = box.querySelector("ol");
const count = box.querySelector(".count");
box.hidden = false;

let rows;
/** Loads the index when it is first needed. */
const load = () => (rows ??= fetch(`${top_}/search.json`).then((answer) => answer.json()));

/** Returns the best sections that contain every word; a word in a heading counts more than one in the text. */
function find(sections, query) {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  const found = [];
  for (const [address, page, heading, text] of sections) {
    const [title, body] = [`${page} ${heading}`.toLowerCase(), text.toLowerCase()];
    let score = 0;
    for (const word of words) {
      const [inTitle, inBody] = [title.includes(word), body.indexOf(word)];
      if (!inTitle && inBody < 0) {
        score = 0;
        break;
      }
      score += (inTitle ? 5 : 0) + (inBody < 0 ? 0 : 1);
      if (page.toLowerCase() === word || heading.toLowerCase() === word) score += 10;
    }
    if (score > 0) found.push({ address, page, heading, text, score, word: words[0] });
  }
  return found.sort((a, b) => b.score - a.score);
}

function item({ address, page, heading, text, word }, index) {
  const row = document.createElement("li");
  row.setAttribute("role", "option");
  row.id = `result-${index}`;
  row.setAttribute("aria-selected", "false");
  const link = document.createElement("a");
  link.href = `${top_}/${address}`;
  link.tabIndex = -1;
  const title = document.createElement("b");
  title.textContent = heading === page ? page : `${page} › ${heading}`;
  const excerpt = document.createElement("span");
  const from = Math.max(0, text.toLowerCase().indexOf(word) - 40);
  excerpt.textContent = (from > 0 ? "…" : "") + text.slice(from, from + 120);
  link.append(title, excerpt);
  row.append(link);
  return row;
}

let selected = -1;
function select(index) {
  const options = [...list.children];
  selected = options.length === 0 ? -1 : (index + options.length) % options.length;
  options.forEach((option, i) => option.setAttribute("aria-selected", String(i === selected)));
  if (selected < 0) input.removeAttribute("aria-activedescendant");
  else {
    input.setAttribute("aria-activedescendant", options[selected].id);
    options[selected].scrollIntoView({ block: "nearest" });
  }
}

function show(results, query) {
  list.replaceChildren(...results.slice(0, MOST).map(item));
  list.hidden = results.length === 0;
  input.setAttribute("aria-expanded", String(results.length > 0));
  count.textContent = query && results.length === 0 ? "Nothing found." : "";
  select(results.length > 0 ? 0 : -1);
}

input.addEventListener("focus", load, { once: true });
input.addEventListener("input", async () => {
  const query = input.value.trim();
  const results = query ? find(await load(), query) : [];
  if (query === input.value.trim()) show(results, query);
});
input.addEventListener("keydown", (event) => {
  if (event.key === "ArrowDown" || event.key === "ArrowUp") {
    event.preventDefault();
    select(selected + (event.key === "ArrowDown" ? 1 : -1));
  } else if (event.key === "Enter" && selected >= 0) {
    list.children[selected].firstChild.click();
    show([], "");
  } else if (event.key === "Escape") {
    input.value = "";
    show([], "");
  }
});
list.addEventListener("click", () => show([], ""));
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && document.activeElement !== input) {
    event.preventDefault();
    input.focus();
  }
});
document.addEventListener("click", (event) => {
  if (!box.contains(event.target)) show([], "");
});
