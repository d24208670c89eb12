// What the daemon's answers say together: rates between two of them, and who is waited for.

/** Samples that curves show: a minute, with an answer each half second. */
export const SAMPLES = 120;
/** Rates are of at least so many milliseconds, or they would jump with each answer. */
const RATE_MS = 900;

/** Counts of packets that were not refused: what became of them all the same is no fault. */
const WELCOME = new Set([
  "contributions",
  "blocks",
  "duplicates",
  "resends",
  "pendings",
  "stale",
  "probes",
  "moves",
  "copies",
  "forwards",
  "forwards_again",
  "deliveries",
  "late",
  "relays",
]);

function remember(history, value) {
  history.push(value);
  if (history.length > SAMPLES) history.shift();
  return history;
}

const sum = (values) => values.reduce((all, value) => all + value, 0);
/** The sum, or null where one of them is not known. */
const known = (values) => (values.some((value) => value === null) ? null : sum(values));

/** The host of `host:port`; a rank that is no member has none. */
export const host = (address) => (address ?? "no address").replace(/:\d+$/, "");

/** Answers of one daemon, in the order in which they came. */
export class Model {
  /** Those of the last second or so, the oldest first. */
  #past = [];
  #histories = new Map();

  #history(name, value) {
    if (!this.#histories.has(name)) this.#histories.set(name, []);
    return remember(this.#histories.get(name), value);
  }

  /** Between the last answer and the next one lies a time of which nothing is known. */
  gap() {
    this.#past = [];
    for (const history of this.#histories.values()) remember(history, null);
  }

  /** Takes in an answer of `/api/v1/jobs`, and says what is to be shown. */
  take(answer) {
    const { daemon } = answer;
    const age = (past) => daemon.time_unix_ms - past.daemon.time_unix_ms;
    const last = this.#past.findLast((past) => age(past) >= RATE_MS);
    this.#past = this.#past.filter((past) => age(past) <= 2 * RATE_MS);
    this.#past.push(answer);
    // Growth a second; null where it is not known: a first answer, or a count that began anew.
    const grown = (now, before) =>
      last === undefined || before === undefined || now < before
        ? null
        : ((now - before) * 1000) / age(last);

    const portsBefore = new Map(last?.ports.map((port) => [port.name, port]));
    const ports = answer.ports.map((port) => {
      const was = portsBefore.get(port.name);
      const rx = grown(port.rx_bytes, was?.rx_bytes);
      const tx = grown(port.tx_bytes, was?.tx_bytes);
      return {
        ...port,
        rx,
        tx,
        rxPackets: grown(port.rx_packets, was?.rx_packets),
        txPackets: grown(port.tx_packets, was?.tx_packets),
        rxHistory: this.#history(`rx ${port.name}`, rx),
        txHistory: this.#history(`tx ${port.name}`, tx),
      };
    });

    const jobsBefore = new Map(last?.jobs.map((job) => [`${job.id} ${job.name}`, job]));
    const jobs = answer.jobs.map((job) => {
      const was = jobsBefore.get(`${job.id} ${job.name}`);
      return jobShown(job, was?.epoch === job.epoch ? was : undefined, grown);
    });

    const refusals = Object.entries(answer.verdicts)
      .filter(([reason, total]) => total > 0 && !WELCOME.has(reason))
      .map(([reason, total]) => ({
        reason,
        total,
        now: grown(total, last?.verdicts[reason]),
      }))
      .sort((a, b) => b.total - a.total || a.reason.localeCompare(b.reason));

    const waits = jobs.flatMap((job) => job.late.map((late) => ({ job, ...late })));
    waits.sort((a, b) => b.seconds - a.seconds);
    const rx = known(ports.map((port) => port.rx));
    const tx = known(ports.map((port) => port.tx));
    // A job's first answer says nothing of its rate: the others' are known all the same.
    const blocks = last === undefined ? null : sum(jobs.map((job) => job.blocks ?? 0));
    return {
      daemon,
      ports,
      jobs,
      refusals,
      waits,
      rx,
      tx,
      blocks,
      rxHistory: this.#history("rx", rx),
      txHistory: this.#history("tx", tx),
      blocksHistory: this.#history("blocks", blocks),
    };
  }
}

/** Blocks behind the foremost rank at which nobody can go on without this one. */
function span(job, { state }) {
  // A worker's window is its job's slots. Where a call is shorter than that, all of it has begun.
  return Math.max(1, state === "late" ? job.slots_in_use : job.slots);
}

/** A job, with its rates since it was so, who is late, and how near each rank is to the front. */
function jobShown(job, was, grown) {
  const ranks = job.ranks.map((rank) => ({
    ...rank,
    near: 1 - Math.min(1, (rank.lag_blocks ?? 0) / span(job, rank)),
  }));
  const lateRanks = ranks
    .filter(({ state }) => state === "late")
    .map((rank) => ({
      who: `rank ${rank.rank} (${host(rank.address)})`,
      short: `rank ${rank.rank}`,
      seconds: rank.lag_seconds ?? 0,
      blocks: rank.lag_blocks,
      heartbeat: rank.heartbeat_seconds,
    }));
  const lateBranches = job.branches
    .filter(({ late }) => late)
    .map((branch) => ({
      who: `aggregator ${branch.daemon}, which sums ranks ${branch.ranks.join(", ")}`,
      short: `aggregator ${branch.daemon}`,
      seconds: branch.lag_seconds ?? 0,
      blocks: branch.lag_blocks,
    }));
  const parent = job.parent;
  const lateParent = parent?.late
    ? [
        {
          who: `its parent ${host(parent.address)}`,
          short: "its parent",
          seconds: parent.lag_seconds ?? 0,
          blocks: parent.lag_blocks,
        },
      ]
    : [];
  // Each contribution asks for one result. A result that is sent again was lost, or came late; who
  // waits for a late rank is sent none.
  const results = grown(job.contributions, was?.contributions);
  const resent = grown(job.resends, was?.resends);
  const all = results === null || resent === null ? null : results + resent;
  return {
    ...job,
    title: job.name ? `Job ${job.name}` : `Job ${job.id}`,
    ranks,
    late: [...lateRanks, ...lateBranches, ...lateParent],
    blocks: grown(job.blocks_completed, was?.blocks_completed),
    resent: all === null ? null : all === 0 ? 0 : resent / all,
  };
}
