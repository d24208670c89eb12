//! What is to be sent: streams of chunks, what they use, and what they wait for.

/// A capacity that streams share: one direction of a link, a host's processor, an aggregator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ResourceId(pub u32);

impl ResourceId {
    /// As an index of the capacities.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A stream of a [`Schedule`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u32);

impl StreamId {
    /// As an index of the streams.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// What a chunk waits for in another stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// Chunk `k` waits until chunk `k - lag` of the other stream has been delivered; the first
    /// `lag` chunks wait for nothing.
    Lag(u32),
    /// Every chunk waits until all of the other stream has been delivered.
    All,
}

/// Chunks of equal size that follow each other over the same resources.
///
/// A unicast, a multicast and the lock step of a whole aggregation tree are all streams: they
/// differ in what they use.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stream {
    /// Number of chunks, at least 1.
    pub chunks: u32,
    /// Bytes of each on the wire.
    pub chunk_bytes: f64,
    /// Seconds from a chunk's last byte leaving to its being delivered.
    pub latency: f64,
    /// Seconds that the sender spends on each chunk before its first byte leaves (`t_s`).
    pub overhead: f64,
    /// Bytes a second that the stream never exceeds, such as a window over its round-trip time;
    /// infinity for none.
    pub limit: f64,
}

impl Stream {
    /// A single chunk without latency, overhead or limit.
    pub const fn whole(bytes: f64) -> Self {
        Self::chunked(1, bytes)
    }

    /// `chunks` chunks of `chunk_bytes` bytes without latency, overhead or limit.
    pub const fn chunked(chunks: u32, chunk_bytes: f64) -> Self {
        Self { chunks, chunk_bytes, latency: 0.0, overhead: 0.0, limit: f64::INFINITY }
    }

    /// All its bytes.
    pub fn bytes(&self) -> f64 {
        f64::from(self.chunks) * self.chunk_bytes
    }
}

/// What a stream uses while it sends at rate `r`: `weight * r` of each resource.
#[derive(Debug, Default)]
pub struct Uses {
    resources: Vec<u32>,
    /// By resource; 0 where it is not used.
    weights: Vec<f32>,
}

impl Uses {
    /// For a network of this number of resources.
    pub fn new(resources: usize) -> Self {
        Self { resources: Vec::new(), weights: vec![0.0; resources] }
    }

    /// `weight` copies of the stream's bytes pass `resource`, in addition to those so far.
    pub fn add(&mut self, resource: ResourceId, weight: f32) {
        let total = &mut self.weights[resource.index()];
        if *total == 0.0 {
            self.resources.push(resource.0);
        }
        *total += weight;
    }

    fn drain(&mut self) -> impl Iterator<Item = (u32, f32)> + '_ {
        let weights = &mut self.weights;
        self.resources.drain(..).map(|resource| {
            let weight = std::mem::take(&mut weights[resource as usize]);
            (resource, weight)
        })
    }
}

/// All streams of a run.
#[derive(Debug, Default)]
pub struct Schedule {
    pub(super) streams: Vec<Stream>,
    /// Where each stream's uses begin; one more than streams.
    use_starts: Vec<u32>,
    pub(super) use_resources: Vec<u32>,
    pub(super) use_weights: Vec<f32>,
    /// Stream, what it waits for, how.
    waits: Vec<(StreamId, StreamId, After)>,
}

impl Schedule {
    /// Without a stream.
    pub fn new() -> Self {
        Self { use_starts: vec![0], ..Self::default() }
    }

    /// Adds a stream; `uses` is empty afterwards and may be filled again.
    ///
    /// # Panics
    ///
    /// With more than 2^32 uses, of all streams together.
    pub fn add(&mut self, stream: Stream, uses: &mut Uses) -> StreamId {
        for (resource, weight) in uses.drain() {
            self.use_resources.push(resource);
            self.use_weights.push(weight);
        }
        let end = u32::try_from(self.use_resources.len()).expect("at most 2^32 uses");
        self.use_starts.push(end);
        self.streams.push(stream);
        StreamId(self.streams.len() as u32 - 1)
    }

    /// `stream` waits for `other`.
    pub fn wait(&mut self, stream: StreamId, other: StreamId, after: After) {
        self.waits.push((stream, other, after));
    }

    /// All streams, in the order in which they were added.
    pub fn streams(&self) -> &[Stream] {
        &self.streams
    }

    /// Chunks of all streams.
    pub fn chunks(&self) -> u64 {
        self.streams.iter().map(|stream| u64::from(stream.chunks)).sum()
    }

    /// Bytes that the plan puts on each of this number of resources.
    pub fn planned_bytes(&self, resources: usize) -> Vec<f64> {
        self.bytes_with(resources, |stream| self.streams[stream].bytes())
    }

    /// Bytes on each resource when each stream has sent what `sent` says.
    pub(super) fn bytes_with(&self, resources: usize, sent: impl Fn(usize) -> f64) -> Vec<f64> {
        let mut bytes = vec![0.0; resources];
        for stream in 0..self.streams.len() {
            let sent = sent(stream);
            for at in self.uses(stream) {
                let weight = f64::from(self.use_weights[at]);
                bytes[self.use_resources[at] as usize] += sent * weight;
            }
        }
        bytes
    }

    /// Indexes of a stream's uses.
    pub(super) fn uses(&self, stream: usize) -> std::ops::Range<usize> {
        self.use_starts[stream] as usize..self.use_starts[stream + 1] as usize
    }

    /// Which stream waits for which: by the one that waits, and by the one that is waited for.
    pub(super) fn waits(&self) -> (Grouped<(u32, After)>, Grouped<u32>) {
        let count = self.streams.len();
        let waits = self.waits.iter();
        let by_waiter = waits.clone().map(|(s, other, after)| (s.index(), (other.0, *after)));
        let by_other = waits.map(|(s, other, _)| (other.index(), s.0));
        (Grouped::new(count, by_waiter), Grouped::new(count, by_other))
    }
}

/// Values by the index that they belong to, in the order in which they came.
#[derive(Debug)]
pub(super) struct Grouped<T> {
    starts: Vec<u32>,
    values: Vec<T>,
}

impl<T: Copy> Grouped<T> {
    fn new(groups: usize, pairs: impl Iterator<Item = (usize, T)> + Clone) -> Self {
        let mut starts = vec![0_u32; groups + 1];
        for (group, _) in pairs.clone() {
            starts[group + 1] += 1;
        }
        for i in 1..starts.len() {
            starts[i] += starts[i - 1];
        }
        let mut order: Vec<(usize, T)> = pairs.collect();
        order.sort_by_key(|&(group, _)| group);
        Self { starts, values: order.into_iter().map(|(_, value)| value).collect() }
    }

    pub(super) fn get(&self, group: usize) -> &[T] {
        &self.values[self.starts[group] as usize..self.starts[group + 1] as usize]
    }
}
