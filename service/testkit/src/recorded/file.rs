//! Files of histories, which may be larger than the memory: the lines of one key are read at a time.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::Context;
use serde::Deserialize;

use super::Call;

/// Where the lines of each key are.
pub struct History {
    files: Vec<File>,
    lines: BTreeMap<String, Vec<Line>>,
}

#[derive(Clone, Copy)]
struct Line {
    /// The index of the file.
    file: u32,
    length: u32,
    offset: u64,
}

#[derive(Deserialize)]
struct Subject {
    key: String,
}

impl History {
    /// # Errors
    /// When a file or a line cannot be read.
    pub fn open<P: AsRef<Path>>(paths: &[P]) -> anyhow::Result<Self> {
        let mut history = Self { files: Vec::new(), lines: BTreeMap::new() };
        for path in paths {
            let path = path.as_ref();
            let file = File::open(path).with_context(|| format!("opening {}", path.display()))?;
            history.index(&file).with_context(|| format!("reading {}", path.display()))?;
            history.files.push(file);
        }
        Ok(history)
    }

    fn index(&mut self, lines: &File) -> anyhow::Result<()> {
        let (mut reader, mut line) = (BufReader::with_capacity(1 << 20, lines), Vec::new());
        let (mut offset, mut number, file) = (0, 0_u64, u32::try_from(self.files.len())?);
        loop {
            line.clear();
            let length = reader.read_until(b'\n', &mut line)?;
            if length == 0 {
                return Ok(());
            }
            number += 1;
            let Subject { key } = serde_json::from_slice(&line).with_context(|| format!("line {number}"))?;
            let line = Line { file, length: u32::try_from(length)?, offset };
            self.lines.entry(key).or_default().push(line);
            offset += u64::try_from(length)?;
        }
    }

    /// The calls of each key; those about all keys come first.
    pub fn by_key(&self) -> impl Iterator<Item = io::Result<Vec<Call>>> {
        self.lines.values().map(|lines| lines.iter().map(|line| self.call(*line)).collect())
    }

    fn call(&self, Line { file, length, offset }: Line) -> io::Result<Call> {
        let mut bytes = vec![0; length as usize];
        self.files[file as usize].read_exact_at(&mut bytes, offset)?;
        serde_json::from_slice(&bytes).map_err(io::Error::other)
    }
}

/// The calls of a whole history.
pub fn read_file(file: &Path) -> anyhow::Result<Vec<Call>> {
    let lines = File::open(file).with_context(|| format!("opening {}", file.display()))?;
    super::read(BufReader::new(lines)).with_context(|| format!("reading {}", file.display()))
}
