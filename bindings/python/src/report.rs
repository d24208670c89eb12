//! What became of a call.

use pyo3::prelude::*;
use pyo3::types::PyTuple;
use xdp_agg_client::Path;
use xdp_agg_client::lent::Outcome;

/// What became of a call.
#[pyclass(module = "xdp_agg", name = "Report", frozen)]
pub(crate) struct Report {
    outcome: Outcome,
    world_size: u16,
}

impl Report {
    pub(crate) const fn new(outcome: Outcome, world_size: u16) -> Self {
        Self { outcome, world_size }
    }

    fn ranks<'py>(&self, py: Python<'py>, bits: u64) -> PyResult<Bound<'py, PyTuple>> {
        let processes = self.outcome.report.processes.max(1);
        let ranks = (0..self.world_size).filter(|rank| bits >> ((rank / processes) & 63) & 1 != 0);
        PyTuple::new(py, ranks.collect::<Vec<_>>())
    }
}

#[pymethods]
impl Report {
    /// How floats were summed: "exact" or "gradient". None: nothing had to be rounded (integers,
    /// minimum, maximum, copies).
    #[getter]
    fn precision(&self) -> Option<&'static str> {
        self.outcome.precision.map(Into::into)
    }

    /// Elements that were summed again because a NaN or an infinity stood in their block.
    #[getter]
    fn redone(&self) -> u64 {
        self.outcome.redone
    }

    /// Blocks that the call was cut into; a block is what one packet carries.
    #[getter]
    fn blocks(&self) -> u64 {
        self.outcome.report.blocks
    }

    /// Elements of this worker that did not fit the numbers they were summed in and were clamped.
    #[getter]
    fn saturated(&self) -> u64 {
        self.outcome.report.saturated
    }

    /// Blocks in which some worker had a NaN or an infinity.
    #[getter]
    fn non_finite_blocks(&self) -> u64 {
        self.outcome.report.non_finite_blocks
    }

    /// The ranks whose contribution is in all of the result, in ascending order.
    #[getter]
    fn contributors<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        self.ranks(py, self.outcome.report.contributors)
    }

    /// The ranks whose contribution is in a part of the result: they were lost, or came back,
    /// meanwhile (`on_worker_loss="shrink"`).
    #[getter]
    fn partial<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        self.ranks(py, self.outcome.report.partial)
    }

    /// How often the job's members changed while the call was under way.
    #[getter]
    fn reforms(&self) -> u32 {
        self.outcome.report.reforms
    }

    /// Where the sums were made: "aggregator", "ring" (a TCP ring of the workers), "mixed",
    /// or "host" (shared memory: all ranks are processes of one host).
    #[getter]
    fn path(&self) -> &'static str {
        match self.outcome.report.path {
            Path::Aggregator => "aggregator",
            Path::Ring => "ring",
            Path::Mixed => "mixed",
            Path::Host => "host",
        }
    }

    fn __repr__(&self) -> String {
        let precision = self.precision().map_or("None".into(), |name| format!("'{name}'"));
        format!(
            "Report(precision={precision}, path='{}', blocks={}, redone={})",
            self.path(),
            self.blocks(),
            self.redone()
        )
    }
}
