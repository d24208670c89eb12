// Drawings: the strip of a job's ranks, curves of rates, bars of lags.

let ink = {};

/** Takes the colours of the scheme that holds now. */
export function takeColours() {
  const style = getComputedStyle(document.documentElement);
  const names = ["ink", "soft", "line", "track", "good", "late", "bad", "out"];
  ink = Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}

/** Sizes of canvases: to ask the document after each write would lay out the page each time. */
const sizes = new WeakMap();
let resized = () => {};
const observer = new ResizeObserver((entries) => {
  let changed = false;
  for (const { target } of entries) {
    const { width, height } = sizes.get(target);
    const now = { width: target.clientWidth, height: target.clientHeight };
    changed ||= now.width !== width || now.height !== height;
    sizes.set(target, now);
  }
  // In the next frame: to draw here may change what is observed.
  if (changed) requestAnimationFrame(resized);
});

/** Calls this when a canvas has another size than when it was drawn. */
export function onResize(redraw) {
  resized = () => redraw();
}

/** The context of a canvas that has as many points as the screen, cleared; and its size. */
function start(canvas) {
  if (!sizes.has(canvas)) {
    sizes.set(canvas, { width: canvas.clientWidth, height: canvas.clientHeight });
    observer.observe(canvas);
  }
  const { width, height } = sizes.get(canvas);
  const ratio = window.devicePixelRatio || 1;
  const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== w || canvas.height !== h) {
    canvas.width = w;
    canvas.height = h;
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return { context, width, height };
}

/**
 * How far each rank is: a bar each, as high as the rank is near to the one in front. Late ones end
 * in a cap, lost ones are crossed out, those that left or have not joined are empty.
 */
export function strip(canvas, ranks) {
  const { context, width, height } = start(canvas);
  if (!ranks.length || !width) return;
  const pitch = width / ranks.length;
  const gap = pitch > 3 ? Math.min(3, pitch * 0.25) : 0;
  const bar = Math.min(pitch - gap, 14);
  ranks.forEach(({ state, near }, index) => {
    const x = index * Math.min(pitch, bar + gap);
    context.fillStyle = ink.track;
    context.fillRect(x, 0, bar, height);
    if (state === "ok" || state === "late" || state === "waiting") {
      const top = height - Math.max(2, near * height);
      context.fillStyle = { ok: ink.good, late: ink.late, waiting: ink.soft }[state];
      context.fillRect(x, top, bar, height - top);
      if (state === "late") context.fillRect(x, 0, bar, 3);
    } else if (state === "lost") {
      context.strokeStyle = ink.bad;
      context.lineWidth = 1.5;
      context.beginPath();
      context.moveTo(x + 1, 1);
      context.lineTo(x + bar - 1, height - 1);
      context.moveTo(x + bar - 1, 1);
      context.lineTo(x + 1, height - 1);
      context.stroke();
    }
  });
}

/** Curves over time with a common scale, the newest value at the right; null is a gap. */
export function curves(canvas, series, samples) {
  const { context, width, height } = start(canvas);
  if (!width) return;
  const highest = Math.max(1, ...series.flatMap(({ values }) => values.filter((v) => v !== null)));
  context.lineWidth = 1.5;
  context.lineJoin = "round";
  for (const { values, colour, dashed, filled } of series) {
    const place = (index) => [
      width - ((values.length - 1 - index) / (samples - 1)) * width,
      height - 1 - (values[index] / highest) * (height - 3),
    ];
    context.strokeStyle = ink[colour];
    context.setLineDash(dashed ? [3, 2] : []);
    let begun = null;
    const path = new Path2D();
    const area = new Path2D();
    const close = (index) => {
      if (begun === null) return;
      area.lineTo(place(index)[0], height);
      area.lineTo(begun, height);
      area.closePath();
      begun = null;
    };
    values.forEach((value, index) => {
      if (value === null) {
        close(index - 1);
        return;
      }
      const [x, y] = place(index);
      if (begun === null) {
        path.moveTo(x, y);
        area.moveTo(x, height);
        area.lineTo(x, y);
        begun = x;
      } else {
        path.lineTo(x, y);
        area.lineTo(x, y);
      }
    });
    close(values.length - 1);
    if (filled) {
      context.globalAlpha = 0.14;
      context.fillStyle = ink[colour];
      context.fill(area);
      context.globalAlpha = 1;
    }
    context.stroke(path);
  }
}

/** A bar from the left: a share of the whole. */
export function bar(canvas, part, colour) {
  const { context, width, height } = start(canvas);
  context.fillStyle = ink.track;
  context.fillRect(0, 0, width, height);
  context.fillStyle = ink[colour];
  context.fillRect(0, 0, Math.min(1, part) * width, height);
}
