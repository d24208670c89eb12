// Asks the daemon twice a second, and shows what it says, or that it says nothing.

import { Model } from "./model.js";
import {
  addEvents,
  addMissed,
  forgetEvents,
  howToStart,
  onRedraw,
  silent,
  update,
} from "./view.js";

/** How often the daemon is asked, in milliseconds. */
const EACH = 500;
/** An answer that takes longer is none. */
const PATIENCE = 3000;

let model = new Model();
let shown = null;
/** When the last answer came, by this page's clock. */
let answered = null;
let failure = null;
let epoch = { uptime: 0, events: 0, looked: null };

async function ask(path) {
  const answer = await fetch(path, { cache: "no-store", signal: AbortSignal.timeout(PATIENCE) });
  if (!answer.ok) throw new Error(`It answered ${path} with status ${answer.status}.`);
  return answer.json();
}

async function events(last) {
  if (last < epoch.events) {
    epoch.events = 0;
    forgetEvents();
  }
  if (last === epoch.events) {
    addEvents([]);
    return;
  }
  const answer = await ask(`/api/v1/events?since=${epoch.events}`);
  if (epoch.events && answer.first > epoch.events + 1) addMissed(answer.first - epoch.events - 1);
  addEvents(answer.events);
  epoch.events = answer.last;
}

function tellSilence() {
  const seconds = answered === null ? null : (performance.now() - answered) / 1000;
  silent(seconds, failure);
}

async function once() {
  try {
    const answer = await ask("/api/v1/jobs");
    if (answer.daemon.uptime_seconds < epoch.uptime) {
      // Started again: its events are counted from the beginning.
      epoch = { uptime: 0, events: 0, looked: null };
      forgetEvents();
      model = new Model();
    } else if (failure !== null) {
      model.gap();
    }
    if (answer.daemon.time_unix_ms === epoch.looked) {
      // It answers, and has not looked again since the last answer.
      if (performance.now() - answered > PATIENCE) throw new Error(`It repeats its last answer.`);
      return;
    }
    epoch.looked = answer.daemon.time_unix_ms;
    epoch.uptime = answer.daemon.uptime_seconds;
    shown = model.take(answer);
    answered = performance.now();
    failure = null;
    update(shown);
    await events(answer.events_last);
  } catch (error) {
    if (error.name === "TimeoutError") failure = `It took more than ${PATIENCE / 1000} s.`;
    else if (error instanceof TypeError) failure = "It cannot be reached.";
    else failure = error.message;
    console.debug(error);
    tellSilence();
  }
}

async function forever() {
  howToStart();
  onRedraw(() => {
    if (failure !== null) tellSilence();
    else if (shown) update(shown);
  });
  for (;;) {
    const begun = performance.now();
    if (!document.hidden) await once();
    // Large answers are asked for less often: most of the time is for others.
    const took = performance.now() - begun;
    await new Promise((done) => setTimeout(done, Math.max(EACH - took, 2 * took)));
  }
}

// The time since the last answer goes on while a question is under way.
setInterval(() => {
  const late = answered !== null && performance.now() - answered > 4 * EACH;
  if (late && failure === null && !document.hidden) failure = "It takes long.";
  if (failure !== null) tellSilence();
}, 500);
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) once();
});

forever();
