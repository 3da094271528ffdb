//! `halite top`: shows nodes and their operations, and refreshes them periodically.

mod scrape;
mod view;

use std::io::{self, IsTerminal};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::termios::tcgetwinsize;

use super::status::{self, Answers, Row};
use crate::args::Top;
use crate::client::{self, Client, no_cluster};
use crate::output;
use crate::signals::Listener;
use crate::threads;
use scrape::Scraped;

/// Moves the cursor to the upper left corner; overwriting avoids flicker.
const HOME: &str = "\x1b[H";
/// Erase the rest of a line, and the rest of the screen.
const ERASE_LINE: &str = "\x1b[K";
const ERASE_BELOW: &str = "\x1b[J";
/// Rows and columns of a terminal of unknown size.
const DEFAULT_SIZE: (usize, usize) = (24, 80);

/// One sample.
struct Sample {
    at: Instant,
    rows: Vec<Row>,
    /// The reason why the members were not asked; `None` if they were.
    trouble: Option<String>,
    scrapes: Vec<(SocketAddr, Result<Scraped, String>)>,
}

/// Prints the nodes once, or on a terminal repeatedly until a signal.
pub fn run(dir: &Path, args: &Top) -> anyhow::Result<()> {
    let mut client = None;
    let mut sample = Sample::new(dir, &mut client, args)?;
    if args.once || !io::stdout().is_terminal() {
        return Ok(output::print(&view::text(&sample, None))?);
    }
    let (end, ended) = channel();
    // If the main thread has ended already, the send fails, which does not matter.
    let on_signal = move |_| end.send(()).unwrap_or_default();
    let _listener = Listener::spawn(on_signal, || ()).context("cannot listen for signals")?;
    output::print(&format!(
        "{HOME}{ERASE_BELOW}{}",
        fit_to_screen(&view::text(&sample, None), terminal_size())
    ))?;
    let interval = Duration::from_secs(args.interval.into());
    while ended.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
        let next = Sample::new(dir, &mut client, args)?;
        output::print(&fit_to_screen(&view::text(&next, Some(&sample)), terminal_size()))?;
        sample = next;
    }
    Ok(output::print("\n")?)
}

impl Sample {
    /// Asks the members through `client`, which joins if necessary; reads lock files and metrics in any case.
    fn new(dir: &Path, client: &mut Option<Client>, args: &Top) -> anyhow::Result<Sample> {
        let presences = status::presences(dir)?;
        if presences.as_ref().is_some_and(Vec::is_empty) && args.scrape.is_empty() {
            bail!(no_cluster(dir));
        }
        let answers = match presences.as_ref().is_none_or(|nodes| nodes.iter().any(|node| node.alive)) {
            true => ask_members(dir, client),
            false => Err(anyhow::anyhow!("no node runs in {}", dir.display())),
        };
        let presences = presences.unwrap_or_default();
        let trouble = answers.as_ref().err().map(|error| {
            // If the node through which the client joined was restarted, the next sample joins again.
            *client = None;
            format!("{}: showing the state from the lock files", output::error_chain(error))
        });
        let answers = answers.unwrap_or_default();
        let (rows, trouble) = (status::rows(&presences, &answers), trouble.or(answers.source_note()));
        let scrapes = fetch_all(&args.scrape);
        Ok(Sample { at: Instant::now(), rows, trouble, scrapes })
    }
}

fn ask_members(dir: &Path, client: &mut Option<Client>) -> anyhow::Result<Answers> {
    let client = match client {
        Some(client) => client,
        none => none.insert(client::observe(dir)?),
    };
    Answers::request(client, dir)
}

/// Fetches the metrics of all addresses in parallel, so that a silent address delays no other.
fn fetch_all(at: &[SocketAddr]) -> Vec<(SocketAddr, Result<Scraped, String>)> {
    std::thread::scope(|scope| {
        let fetches: Vec<_> =
            at.iter().map(|at| (*at, threads::spawn_in(scope, || Scraped::fetch(*at)))).collect();
        let joined = fetches.into_iter().map(|(at, fetch)| {
            let fetch = fetch.map_err(|refused| refused.to_string());
            let fetched = fetch.and_then(|fetch| {
                fetch.join().unwrap_or_else(|_| Err("the metrics could not be read".to_owned()))
            });
            (at, fetched)
        });
        joined.collect()
    })
}

fn terminal_size() -> (usize, usize) {
    let size = tcgetwinsize(io::stdout()).map(|size| (usize::from(size.ws_row), usize::from(size.ws_col)));
    size.ok().filter(|(rows, columns)| *rows > 0 && *columns > 0).unwrap_or(DEFAULT_SIZE)
}

/// Cuts a text to the size of the screen, and adds codes that erase the old text.
fn fit_to_screen(text: &str, (rows, columns): (usize, usize)) -> String {
    // The last row stays free, because a line feed in it would scroll the screen.
    let lines = text.lines().take(rows - 1).map(|line| {
        let shown: String = line.chars().take(columns).collect();
        format!("{shown}{ERASE_LINE}\n")
    });
    format!("{HOME}{}{ERASE_BELOW}", lines.collect::<String>())
}
