// What a reader of the page could stumble over, a line each. The body of a function.
const found = [];
const root = document.documentElement;
if (root.scrollWidth > innerWidth) found.push(`the page is ${root.scrollWidth} wide in ${innerWidth}`);

function channels(color) {
  const [r, g, b, a = 1] = color.match(/[\d.]+/g).map(Number);
  return { rgb: [r, g, b], a };
}
function over(top, bottom) {
  return top.rgb.map((value, n) => value * top.a + bottom[n] * (1 - top.a));
}
function luminance(rgb) {
  const [r, g, b] = rgb.map((value) => {
    const share = value / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}
function paper(element) {
  if (!element) return matchMedia("(prefers-color-scheme: dark)").matches ? [18, 18, 18] : [255, 255, 255];
  const color = channels(getComputedStyle(element).backgroundColor);
  return color.a === 1 ? color.rgb : over(color, paper(element.parentElement));
}

document.querySelectorAll("details").forEach((details) => (details.open = true));
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const text = walker.currentNode.data.trim();
  const element = walker.currentNode.parentElement;
  if (!text || element.closest("title, noscript, .skip") || !element.checkVisibility()) continue;
  const style = getComputedStyle(element);
  const behind = paper(element);
  const svg = element.closest("svg");
  const ink = channels(svg ? style.fill : style.color);
  const [a, b] = [luminance(over(ink, behind)), luminance(behind)];
  const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  if (contrast < 4.5) found.push(`contrast ${contrast.toFixed(2)}: ${text.slice(0, 40)}`);
  const scale = svg ? svg.getBoundingClientRect().width / svg.viewBox.baseVal.width : 1;
  const size = parseFloat(style.fontSize) * scale;
  if (size < 11.9) found.push(`${size} px: ${text.slice(0, 40)}`);
}
const ids = [...document.querySelectorAll("[id]")].map((element) => element.id);
if (new Set(ids).size !== ids.length) found.push("an id is there twice");
for (const link of document.querySelectorAll("a[href^='#']")) {
  const id = (link.getAttribute("href") ?? "").slice(1);
  if (!document.getElementById(id)) found.push(`a link to nowhere: ${id}`);
}
document.querySelectorAll("details").forEach((details) => (details.open = false));
return found;
