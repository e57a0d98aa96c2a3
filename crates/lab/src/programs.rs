//! Programs of the machine: where they are, and which version.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Where Debian puts servers; users other than root do not have these in PATH.
const MORE: [&str; 3] = ["/usr/sbin", "/usr/local/sbin", "/sbin"];

/// Where a program is.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(MORE.map(PathBuf::from))
        .map(|directory| directory.join(name))
        .find(|candidate| is_executable(candidate))
}

fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    std::fs::metadata(path).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

/// The first line of what a program says to these arguments, wherever it says it.
pub(crate) fn first_line(program: &Path, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .ok()?;
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    let line = text.lines().map(str::trim).find(|line| !line.is_empty())?;
    Some(line.to_owned())
}

/// Runs a program to its end, with text for its standard input; what it wrote to its standard output.
///
/// # Errors
/// The end of what it said, when it could not be run or did not succeed.
pub(crate) fn run(command: &mut Command, input: &str) -> Result<String, String> {
    use std::io::Write;
    use std::os::unix::process::CommandExt;

    let name = command.get_program().to_string_lossy().into_owned();
    // A group of its own: control-C is for the lab, which ends in its own time.
    let mut child = command
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("{name} cannot be run: {error}"))?;
    let writer = child.stdin.take().map(|mut stdin| {
        let input = input.to_owned();
        // A program that fails early does not read all of it: its status says so.
        std::thread::spawn(move || drop(stdin.write_all(input.as_bytes())))
    });
    let output = child
        .wait_with_output()
        .map_err(|error| format!("{name}: {error}"))?;
    if let Some(writer) = writer {
        drop(writer.join());
    }
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(said);
    }
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    let text = tail(&format!("{said}{error}"), 20);
    Err(format!("{name} failed ({}):\n{text}", output.status))
}

/// The last lines of a text.
pub(crate) fn tail(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.lines().collect();
    all.get(all.len().saturating_sub(lines)..)
        .unwrap_or_default()
        .join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_and_missed() {
        assert!(find("sh").is_some());
        assert!(find("no-such-program-here").is_none());
    }

    #[test]
    fn what_a_program_says_and_how_it_fails() {
        let mut cat = Command::new("cat");
        assert_eq!(run(&mut cat, "text"), Ok("text".to_owned()));
        let error = run(Command::new("sh").args(["-c", "echo why >&2; exit 3"]), "").unwrap_err();
        assert!(error.contains("why") && error.contains('3'), "{error}");
        assert!(run(&mut Command::new("no-such-program-here"), "").is_err());
        let sh = find("sh").unwrap();
        let line = first_line(&sh, &["-c", "echo; echo ' one '; echo two"]);
        assert_eq!(line.as_deref(), Some("one"));
        assert_eq!(tail("a\nb\nc", 2), "b\nc");
    }
}
