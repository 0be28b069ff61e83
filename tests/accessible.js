// What keeps a page from being read by all, as sentences: contrast, names, labels, order of headings.
(() => {
  const problems = new Set();
  const seen = (element) => element.getClientRects().length > 0 && getComputedStyle(element).visibility !== "hidden";
  const say = (what, element) => problems.add(`${what}: <${element.tagName.toLowerCase()}> ${element.textContent.trim().slice(0, 40)}`);

  const paint = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const colors = new Map();
  const rgba = (color) => {
    if (!colors.has(color)) {
      paint.clearRect(0, 0, 1, 1);
      paint.fillStyle = color;
      paint.fillRect(0, 0, 1, 1);
      colors.set(color, [...paint.getImageData(0, 0, 1, 1).data]);
    }
    return colors.get(color);
  };
  const luminance = ([red, green, blue]) => {
    const [r, g, b] = [red, green, blue].map((value) => value / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const color = rgba(getComputedStyle(at).backgroundColor);
      if (color[3] === 255) return color;
    }
    return [255, 255, 255, 255];
  };
  for (const element of document.body.querySelectorAll("*")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!own || !seen(element) || element.closest("script, style, noscript")) continue;
    const style = getComputedStyle(element), svg = element instanceof SVGElement;
    const [a, b] = [rgba(svg ? style.fill : style.color), behind(element)].map(luminance).sort((x, y) => y - x);
    const size = parseFloat(style.fontSize), large = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
    if ((a + 0.05) / (b + 0.05) < (large ? 3 : 4.5)) say(`contrast ${((a + 0.05) / (b + 0.05)).toFixed(2)}`, element);
  }
  const named = (element) => element.getAttribute("aria-label") || element.textContent.trim() || element.closest("label")?.textContent.trim() || element.title;
  for (const element of document.querySelectorAll("button, a, input, select, [role=button], [role=region], [role=img], dialog")) {
    const by = element.getAttribute("aria-labelledby");
    if (seen(element) && !(by ? document.getElementById(by)?.textContent.trim() : named(element))) say("no name", element);
  }
  for (const image of document.querySelectorAll("img:not([alt])")) say("no alt", image);
  for (const box of document.querySelectorAll("*")) {
    const style = getComputedStyle(box), scrolls = /auto|scroll/.test(style.overflowX) && box.scrollWidth > box.clientWidth + 1;
    if (scrolls && seen(box) && box.tabIndex < 0 && !box.querySelector("button, a, [tabindex='0']")) say("scrolls without the keyboard", box);
  }
  const ids = [...document.querySelectorAll("[id]")].map((element) => element.id);
  for (const id of ids.filter((id, n) => ids.indexOf(id) !== n)) problems.add(`id twice: ${id}`);
  const levels = [...document.querySelectorAll("h1, h2, h3, h4")].filter((head) => !head.closest("dialog") && seen(head)).map((head) => Number(head.tagName[1]));
  levels.forEach((level, n) => n && level > levels[n - 1] + 1 && problems.add(`heading jumps to h${level}`));
  if (levels[0] !== 1 || levels.filter((level) => level === 1).length !== 1) problems.add("not one h1");
  if (!document.documentElement.lang) problems.add("no language");
  return [...problems];
})()
