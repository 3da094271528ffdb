//! Writes plots and pages to files. Checks the files before the measurement, so that an unwritable file wastes no
//! measurement.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The files of `--svg` and `--out`.
pub struct Target<'a> {
    svg: Option<&'a Path>,
    out: Option<&'a Path>,
    is_forced: bool,
}

/// A file or folder that cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    #[error("{} exists; --force overwrites it", path.display())]
    Exists { path: PathBuf },
    #[error("{} is not a folder; --out needs a folder", path.display())]
    NoFolder { path: PathBuf },
    #[error("cannot write {}: {cause}", path.display())]
    Write { path: PathBuf, cause: io::Error },
}

const PAGE: &str = "index.html";

impl<'a> Target<'a> {
    /// Fails if a file exists that may not be overwritten, or if the plot cannot be written.
    pub fn new(svg: Option<&'a Path>, out: Option<&'a Path>, force: bool) -> Result<Target<'a>, TargetError> {
        if let Some(path) = out.filter(|path| path.exists() && !path.is_dir()) {
            return Err(TargetError::NoFolder { path: path.to_owned() });
        }
        let existing = [svg, out].into_iter().flatten().find(|path| path.exists());
        match existing {
            Some(path) if !force => return Err(TargetError::Exists { path: path.to_owned() }),
            _ => {}
        }
        if let Some(path) = svg {
            probe(path).map_err(|cause| TargetError::Write { path: path.to_owned(), cause })?;
        }
        Ok(Target { svg, out, is_forced: force })
    }

    /// Writes the plot, if the user asked for one.
    pub fn write_svg(&self, plot: impl FnOnce() -> String) -> Result<(), TargetError> {
        self.svg.map_or(Ok(()), |path| self.write_file(path, &plot()))
    }

    /// Creates the folder with plots, each with its name, and a page, if the user asked for one.
    pub fn write_page<'b>(
        &self,
        plots: impl Iterator<Item = (&'b str, String)>,
        page: impl FnOnce() -> String,
    ) -> Result<(), TargetError> {
        let Some(dir) = self.out else { return Ok(()) };
        fs::create_dir_all(dir).map_err(|cause| TargetError::Write { path: dir.to_owned(), cause })?;
        let plots = plots.map(|(name, plot)| (format!("{name}.svg"), plot));
        let mut files = plots.chain([(PAGE.to_owned(), page())]);
        files.try_for_each(|(name, text)| self.write_file(&dir.join(name), &text)).inspect_err(|_| {
            // Fails if the folder has files.
            let _ = fs::remove_dir(dir);
        })
    }

    /// Writes a file whole or not at all.
    fn write_file(&self, path: &Path, text: &str) -> Result<(), TargetError> {
        let part = path.with_added_extension("part");
        let placed = fs::write(&part, text).and_then(|()| match self.is_forced {
            true => fs::rename(&part, path),
            // Fails if the file has come into being since `new`.
            false => fs::hard_link(&part, path),
        });
        // A renamed file is gone.
        let _ = fs::remove_file(&part);
        placed.map_err(|cause| TargetError::Write { path: path.to_owned(), cause })
    }
}

/// Creates and removes a file beside `path`.
fn probe(path: &Path) -> io::Result<()> {
    let part = path.with_added_extension("part");
    fs::write(&part, "")?;
    fs::remove_file(part)
}
