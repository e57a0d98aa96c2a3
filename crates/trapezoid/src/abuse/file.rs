//! The file of the bans. It is text, a line for each ban, so that an operator can read it. It is written
//! under another name and then renamed, so that it is whole whenever the machine stops.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use sip_core::admission::Source;

use super::guard::{Ban, By, REASON};

/// First line of the file; a later form has another number.
const HEAD: &str = "trapezoid bans 1";

/// Largest accepted file, bytes: a million bans with long reasons.
const MOST: u64 = 512 << 20;

/// Error of reading the file.
#[derive(Debug)]
pub(crate) enum Wrong {
    /// The file cannot be read.
    Io(io::Error),
    /// The file is not one of ours, or damaged: number of the line, and the problem there.
    Line(usize, &'static str),
}

impl std::fmt::Display for Wrong {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Io(error) => std::fmt::Display::fmt(error, f),
            Self::Line(line, what) => write!(f, "line {line}: {what}"),
        }
    }
}

/// The text of these bans: source, begin, end (`-`: none), number, maker and reason, between tabs; times in
/// Unix milliseconds. The last line has the number of bans.
pub(super) fn render<'b>(bans: impl Iterator<Item = (Source, &'b Ban)>) -> String {
    let mut text = format!("{HEAD}\n");
    let mut count = 0;
    for (source, ban) in bans {
        let until = ban.until_ms.map_or("-".to_owned(), |until| until.to_string());
        let (since, strikes, by, reason) = (ban.since_ms, ban.strikes, ban.by.name(), plain(&ban.reason));
        text.push_str(&format!(
            "{source}\t{since}\t{until}\t{strikes}\t{by}\t{reason}\n"
        ));
        count += 1;
    }
    text.push_str(&format!("end {count}\n"));
    text
}

/// A reason in the stored form: one line of at most [`REASON`] characters.
pub(crate) fn plain(reason: &str) -> String {
    let visible = reason.chars().map(|c| if c.is_control() { ' ' } else { c });
    visible.take(REASON).collect()
}

/// Reads a file; returns no bans if it does not exist.
pub(super) fn read(path: &Path) -> Result<Vec<(Source, Ban)>, Wrong> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(Wrong::Io)?,
    };
    let mut bans = Vec::new();
    let mut lines = BufReader::new(file.take(MOST)).lines().enumerate();
    let mut next = || match lines.next() {
        None => Err(Wrong::Line(0, "the last line, \"end\" and a number, is missing")),
        Some((_, Err(error))) if error.kind() == io::ErrorKind::InvalidData => {
            Err(Wrong::Line(0, "it is no text"))
        }
        Some((_, Err(error))) => Err(Wrong::Io(error)),
        Some((index, Ok(line))) => Ok((index + 1, line)),
    };
    if !next().is_ok_and(|(_, line)| line == HEAD) {
        return Err(Wrong::Line(1, "not \"trapezoid bans 1\""));
    }
    loop {
        let (number, line) = next()?;
        if let Some(count) = line.strip_prefix("end ") {
            if count.parse() != Ok(bans.len()) {
                return Err(Wrong::Line(number, "another number of bans than there are"));
            }
            return Ok(bans);
        }
        bans.push(parse(&line).ok_or(Wrong::Line(number, "not a ban"))?);
    }
}

fn parse(line: &str) -> Option<(Source, Ban)> {
    let mut fields = line.splitn(6, '\t');
    let source = fields.next()?.parse().ok()?;
    let since_ms = fields.next()?.parse().ok()?;
    let until_ms = match fields.next()? {
        "-" => None,
        number => Some(number.parse().ok()?),
    };
    let strikes = fields.next()?.parse().ok()?;
    let by = By::parse(fields.next()?)?;
    let reason = plain(fields.next()?);
    // A ban for failures always has an end.
    (by == By::Hand || until_ms.is_some()).then_some((
        source,
        Ban {
            since_ms,
            until_ms,
            strikes,
            by,
            reason,
        },
    ))
}

/// The disk to which a file is written. Only a test has another: the order of these steps decides what a
/// power failure leaves on the disk, and a killed process does not show that.
trait Disk {
    type File;
    fn create(&mut self, path: &Path) -> io::Result<Self::File>;
    fn open_dir(&mut self, path: &Path) -> io::Result<Self::File>;
    fn write(&mut self, file: &mut Self::File, text: &str) -> io::Result<()>;
    /// Puts a file's content, or a directory's names, on stable storage.
    fn sync(&mut self, file: &Self::File) -> io::Result<()>;
    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()>;
}

/// The operating system's disk.
struct Os;

impl Disk for Os {
    type File = File;

    fn create(&mut self, path: &Path) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        options.open(path)
    }

    fn open_dir(&mut self, path: &Path) -> io::Result<File> {
        File::open(path)
    }

    fn write(&mut self, file: &mut File, text: &str) -> io::Result<()> {
        file.write_all(text.as_bytes())
    }

    fn sync(&mut self, file: &File) -> io::Result<()> {
        file.sync_all()
    }

    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }
}

/// Replaces the content of the file by `text`. When this function returns, the text is on disk.
pub(super) fn write(path: &Path, text: &str) -> io::Result<()> {
    write_by(&mut Os, path, text)
}

/// Replaces the content of the file. The draft is on disk before it gets its name, and the name is on disk
/// before this function returns. So the name always stands for a whole file.
fn write_by<D: Disk>(disk: &mut D, path: &Path, text: &str) -> io::Result<()> {
    let draft = beside(path, ".new");
    let mut file = disk.create(&draft)?;
    disk.write(&mut file, text)?;
    disk.sync(&file)?;
    disk.rename(&draft, path)?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let parent = disk.open_dir(parent.unwrap_or(Path::new(".")))?;
    disk.sync(&parent)
}

/// Renames a damaged file, so that an operator can read it and nothing overwrites it.
pub(super) fn set_aside(path: &Path) -> io::Result<PathBuf> {
    let aside = beside(path, ".damaged");
    fs::rename(path, &aside)?;
    Ok(aside)
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bans() -> Vec<(Source, Ban)> {
        let ban = |until_ms, by, reason: &str| Ban {
            since_ms: 1_800_000_000_000,
            until_ms,
            strikes: 3,
            by,
            reason: reason.to_owned(),
        };
        let source = |text: &str| text.parse().expect("a source");
        vec![
            (
                source("192.0.2.66"),
                ban(Some(1_800_000_300_000), By::Failures, "12 failed"),
            ),
            (source("2001:db8::/64"), ban(None, By::Hand, "")),
            (source("198.51.100.1"), ban(Some(5), By::Hand, "a\tb, é")),
        ]
    }

    fn text(bans: &[(Source, Ban)]) -> String {
        render(bans.iter().map(|(source, ban)| (*source, ban)))
    }

    #[test]
    fn what_is_written_is_read() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("bans");
        assert!(read(&path).expect("none yet").is_empty());
        let mut bans = bans();
        write(&path, &text(&bans)).expect("written");
        bans[2].1.reason = "a b, é".to_owned();
        assert_eq!(read(&path).expect("bans"), bans);
        write(&path, &text(&[])).expect("written again");
        assert!(read(&path).expect("none").is_empty());
        assert_eq!(
            fs::read_dir(dir.path()).expect("readable").count(),
            1,
            "no draft is left"
        );
        use std::os::unix::fs::PermissionsExt;
        let mode = fs::metadata(&path).expect("there").permissions().mode() & 0o777;
        assert_eq!(mode, 0o600);
    }

    #[test]
    fn errors_of_damaged_files_name_the_line() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("bans");
        let good = text(&bans());
        let table = [
            (String::new(), "line 1: not \"trapezoid bans 1\""),
            (
                good.replace("bans 1", "bans 2"),
                "line 1: not \"trapezoid bans 1\"",
            ),
            (
                good.replace("end 3", "end 4"),
                "line 5: another number of bans than there are",
            ),
            (
                good.replace("end 3\n", ""),
                "line 0: the last line, \"end\" and a number, is missing",
            ),
            (good.replace("hand", "foot"), "line 3: not a ban"),
            (good.replace("192.0.2.66", "192.0.2"), "line 2: not a ban"),
            (good.replace("1800000300000", "-"), "line 2: not a ban"),
        ];
        for (text, expected) in table {
            fs::write(&path, &text).expect("writable");
            let wrong = read(&path).expect_err(expected);
            assert_eq!(wrong.to_string(), expected, "{text}");
        }
        for length in 0..good.len() {
            fs::write(&path, &good.as_bytes()[..length]).expect("writable");
            // The text means the same without the last line end.
            assert_eq!(read(&path).is_ok(), length == good.len() - 1, "{length}");
        }
        fs::write(&path, b"trapezoid bans 1\n\xff\xfe\n").expect("writable");
        assert!(matches!(read(&path), Err(Wrong::Line(..))));
        let aside = set_aside(&path).expect("renamed");
        assert!(!path.exists() && aside.exists());
    }

    /// A disk that records its steps, and fails at one of them.
    struct FailingDisk {
        steps: Vec<String>,
        fails_at: usize,
    }

    impl FailingDisk {
        fn step(&mut self, step: String) -> io::Result<()> {
            if self.steps.len() == self.fails_at {
                return Err(io::Error::other("the disk fails"));
            }
            self.steps.push(step);
            Ok(())
        }
    }

    impl Disk for FailingDisk {
        type File = PathBuf;

        fn create(&mut self, path: &Path) -> io::Result<PathBuf> {
            self.step(format!("create {}", path.display()))?;
            Ok(path.to_owned())
        }

        fn open_dir(&mut self, path: &Path) -> io::Result<PathBuf> {
            Ok(path.to_owned())
        }

        fn write(&mut self, file: &mut PathBuf, text: &str) -> io::Result<()> {
            self.step(format!("write {text} to {}", file.display()))
        }

        fn sync(&mut self, file: &PathBuf) -> io::Result<()> {
            self.step(format!("sync {}", file.display()))
        }

        fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
            self.step(format!("rename {} to {}", from.display(), to.display()))
        }
    }

    /// The order of steps decides what a power failure leaves. So does that no step follows a failed one.
    #[test]
    fn a_draft_is_on_disk_before_it_gets_the_name_and_the_name_at_the_end() {
        for (path, dir) in [("/data/bans", "/data"), ("bans", ".")] {
            let steps = [
                format!("create {path}.new"),
                format!("write TEXT to {path}.new"),
                format!("sync {path}.new"),
                format!("rename {path}.new to {path}"),
                format!("sync {dir}"),
            ];
            for fails_at in 0..=steps.len() {
                let mut disk = FailingDisk {
                    steps: Vec::new(),
                    fails_at,
                };
                let written = write_by(&mut disk, Path::new(path), "TEXT");
                assert_eq!(written.is_ok(), fails_at == steps.len(), "{fails_at}");
                assert_eq!(disk.steps, steps[..fails_at]);
            }
        }
    }
}
