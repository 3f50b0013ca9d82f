// The values under the pointer. The page is complete without it.
"use strict";
(() => {
  const label = document.createElement("div");
  label.id = "cursor";
  label.hidden = true;
  document.body.append(label);

  const numbers = (text) => text.split(" ").map(Number);

  // The index of the value of `xs`, which ascends, that is nearest to x.
  const nearest = (xs, x) => {
    let low = 0, high = xs.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (xs[middle] < x) low = middle; else high = middle;
    }
    return Math.abs(xs[low] - x) <= Math.abs(xs[high] - x) ? low : high;
  };

  const curvesOf = (svg) => [...svg.querySelectorAll("[data-x]")].map(({ dataset }) =>
    ({ name: dataset.name, xs: numbers(dataset.x), ys: dataset.y.split(" "),
      top: Number(dataset.top ?? -Infinity), bottom: Number(dataset.bottom ?? Infinity) }));

  // The values near x, as lines of text: all of one place, or each with its own.
  const words = (curves, axis, x) => {
    const near = Math.max(1, (axis.high - axis.low) / 100);
    const values = curves.map(({ name, xs, ys }) => {
      const i = nearest(xs, x);
      return { name, at: xs[i], value: ys[i] };
    }).filter(({ at }) => Math.abs(at - x) <= near);
    if (values.length === 0) return "";
    const at = values.reduce((best, value) => Math.abs(value.at - x) < Math.abs(best.at - x) ? value : best).at;
    return [`${axis.title} ${Math.round(at)}`, ...values.map((value) =>
      `${value.name}: ${value.value}${Math.round(value.at) === Math.round(at) ? "" : ` (at ${Math.round(value.at)})`}`
    )].join("\n");
  };

  const show = (svg, curves, event) => {
    const point = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
    const axis = Object.fromEntries(Object.entries(svg.querySelector("[data-low]").dataset).map(([name, value]) =>
      [name, name === "title" ? value : Number(value)]));
    const x = axis.low + (point.x - axis.from) / (axis.to - axis.from) * (axis.high - axis.low);
    label.textContent = words(curves.filter(({ top, bottom }) => top <= point.y && point.y < bottom), axis, x);
    label.hidden = label.textContent === "";
    const most = document.documentElement.clientWidth - label.offsetWidth - 4;
    label.style.left = `${Math.max(0, Math.min(event.pageX + 14, most))}px`;
    label.style.top = `${event.pageY + 14}px`;
  };

  for (const svg of document.querySelectorAll("svg.chart")) {
    let curves = null;
    svg.addEventListener("pointermove", (event) => {
      curves ??= curvesOf(svg);
      if (curves.length > 0) show(svg, curves, event);
    });
    svg.addEventListener("pointerleave", () => { label.hidden = true; });
  }
})();
