//! Counts the words of files with two threads of one process, as a baseline for `halite run wordcount`.
//!
//! ```sh
//! cargo run --release -p halite-apps --example wordcount_plain -- 2 FILE...
//! ```
//!
//! The program shares the tokenizer and the table with the application, and has no nodes, regions or calls. It reads
//! files, not folders. The borders of the pieces that it reads may cut a word, which changes few counts and saves time.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use halite_apps::mapreduce::table::Table;
use halite_apps::mapreduce::words::count_words;

const PIECE_BYTES: u64 = 1 << 20;

fn main() -> io::Result<()> {
    let mut args = std::env::args_os().skip(1);
    let threads: usize =
        args.next().and_then(|count| count.to_str()?.parse().ok()).expect("a number of threads");
    let paths: Vec<PathBuf> = args.map(PathBuf::from).collect();
    let begin = Instant::now();
    let mut pieces = Vec::new();
    for path in &paths {
        let len = std::fs::metadata(path)?.len();
        pieces.extend(
            (0..len).step_by(PIECE_BYTES as usize).map(|start| (path, start, PIECE_BYTES.min(len - start))),
        );
    }
    // Hands out pieces; orders no other memory.
    let next = AtomicUsize::new(0);
    let tables = std::thread::scope(|scope| {
        let work = || count(&pieces, &next);
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, io::Result<Table<u64>>>| {
            thread.join().expect("no panic")
        };
        threads.into_iter().map(join).collect::<io::Result<Vec<_>>>()
    })?;
    let mapped = begin.elapsed().as_secs_f64();
    let mut all = Table::default();
    for table in &tables {
        table.iter().for_each(|(word, count)| all.add(word, *count, |sum, more| *sum += more));
    }
    let mut top: Vec<(&[u8], u64)> = all.iter().map(|(word, count)| (word, *count)).collect();
    top.sort_unstable_by(|(word, count), (other, others)| others.cmp(count).then(word.cmp(other)));
    let seconds = begin.elapsed().as_secs_f64();
    for (word, count) in top.iter().take(10) {
        println!("{count:>12} {}", String::from_utf8_lossy(word));
    }
    let words: u64 = top.iter().map(|(_, count)| count).sum();
    let bytes: u64 = pieces.iter().map(|(_, _, len)| len).sum();
    let rate = bytes as f64 / 1e6 / mapped / threads as f64;
    println!(
        "{bytes} bytes, {words} words, {} distinct, {seconds:.3} s, {rate:.0} MB/s per thread",
        top.len()
    );
    Ok(())
}

/// Counts the words of pieces until none is left.
fn count(pieces: &[(&PathBuf, u64, u64)], next: &AtomicUsize) -> io::Result<Table<u64>> {
    let mut counts = Table::default();
    let mut text = vec![0; PIECE_BYTES as usize];
    while let Some((path, start, len)) = pieces.get(next.fetch_add(1, Ordering::Relaxed)) {
        let text = &mut text[..*len as usize];
        File::open(path)?.read_exact_at(text, *start)?;
        count_words(text, &mut counts);
    }
    Ok(counts)
}
