//! A worker: requests orders from the master, executes them, and reports the results.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use halite::Session;

use super::clock::Clock;
use super::desk::{Order, Report, Request, request_order};
use super::error::Error;
use super::exchange::{Buffer, Publisher, Section, decode, encode, read_sections};
use super::input::{Reader, Split};
use super::job::{Job, Text};
use super::table::Table;

/// Pause of a worker that has nothing to do.
const IDLE_PAUSE: Duration = Duration::from_millis(1);

/// A worker of a run.
#[derive(Clone, Copy)]
pub struct Worker<'a> {
    /// Session of the worker's node.
    pub session: &'a Session,
    /// Unique name of the run. The master serves under this name, and the names of the run's regions begin with it.
    pub run: &'a str,
    /// Number of the worker, from 0.
    pub number: u32,
    /// Number of workers.
    pub workers: u32,
    /// Set when the worker must end. The worker reads it with relaxed ordering.
    pub is_over: &'a AtomicBool,
    /// Clock with which the worker pauses while it has nothing to do.
    pub clock: &'a dyn Clock,
}

impl Worker<'_> {
    /// Executes orders until the master ends the run, then frees this worker's regions, also after a failure.
    ///
    /// Returns an error if the master does not answer or a region cannot be freed. Other failures are reported to the
    /// master, which ends the run.
    pub async fn work<J: Job>(&self, job: &J) -> Result<(), Error> {
        let publisher = Publisher::new(self.session, self.run, self.number);
        let mut state =
            WorkerState { setup: self, job, publisher, reader: Reader::default(), table: Table::default() };
        let result = state.work().await;
        let freed = state.publisher.free().await;
        result.and(freed)
    }
}

struct WorkerState<'a, J: Job> {
    setup: &'a Worker<'a>,
    job: &'a J,
    publisher: Publisher<'a>,
    reader: Reader,
    /// Combined values of all texts mapped since the last publication.
    table: Table<J::Value>,
}

impl<J: Job> WorkerState<'_, J> {
    async fn work(&mut self) -> Result<(), Error> {
        let mut report = Report::Nothing;
        while !self.setup.is_over.load(Ordering::Relaxed) {
            let request = Request { worker: self.setup.number, report };
            let order = request_order(self.setup.session, self.setup.run, &request).await?;
            if order == Order::End {
                return Ok(());
            }
            report = self.execute(order).await.unwrap_or_else(|error| Report::Failed(error.to_string()));
        }
        Err(Error::Stopped)
    }

    async fn execute(&mut self, order: Order) -> Result<Report, Error> {
        match order {
            Order::Map { task, splits } => self.map(task, &splits),
            Order::Publish => self.publish().await,
            Order::Reduce { part, sections } => self.reduce(part, &sections).await,
            Order::Wait | Order::End => {
                self.setup.clock.pause(IDLE_PAUSE).await;
                Ok(Report::Nothing)
            }
        }
    }

    fn map(&mut self, task: usize, splits: &[Split]) -> Result<Report, Error> {
        let (job, table) = (self.job, &mut self.table);
        let (mut read, mut load_ns) = (0, 0);
        for split in splits {
            let (bytes, time) = self.reader.read(split, J::is_boundary)?;
            read += bytes.len() as u64;
            load_ns += time.as_nanos() as u64;
            let text = Text { file: split.file, number: split.number, bytes };
            job.map(text, |key, value| table.add(key, value, |into, more| job.combine(into, more)));
        }
        Ok(Report::Mapped { task, bytes: read, load_ns })
    }

    async fn publish(&mut self) -> Result<Report, Error> {
        let table = std::mem::take(&mut self.table);
        let buffers = encode(self.job, &table, self.setup.workers as usize)?;
        Ok(Report::Published { sections: self.publisher.publish(&buffers).await? })
    }

    /// Reduces a part. Reads all its sections at the same time.
    async fn reduce(&mut self, part: usize, sections: &[(u32, Section)]) -> Result<Report, Error> {
        let mut table = Table::default();
        let sections = sections.iter().map(|(owner, section)| (*owner, section));
        let add = |bytes: Vec<u8>| decode(self.job, &bytes, &mut table);
        if let Some((owner, reason)) = read_sections(self.setup.session, sections, add).await? {
            return Ok(Report::Unread { owner, reason });
        }
        let weight = table.iter().map(|(_, value)| self.job.weight(value)).sum();
        let keys = table.len() as u64;
        let bytes = postcard::to_stdvec(&self.job.reduce(table))?;
        let run = self.publisher.publish(&[Buffer { bytes, weight }]).await?.remove(0);
        Ok(Report::Reduced { part, run, keys })
    }
}
