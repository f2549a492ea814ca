//! The tools that look at or change one file: read, write, edit.

use std::{
    fs::File,
    io::{self, BufReader, Read, Write},
    os::unix::fs::MetadataExt,
    time::Instant,
};

use super::{
    Answer, Run,
    beneath::Inner,
    input::{Fields, LineRange},
    lines::{Line, Lines},
};

/// The largest text shown by one `read` (API reference §9).
const READ_BYTES_MAX: u64 = 256 << 10;

/// The largest file that `edit` changes: it is held in memory, with its new form.
const EDIT_BYTES_MAX: u64 = 4 << 20;

/// How much of a file is looked at to tell text from binary.
const SNIFF_BYTES: usize = 8 << 10;

pub(super) fn read(run: &Run<'_>, mut fields: Fields) -> Result<Answer, String> {
    let name = fields.string("file_path")?;
    let range = fields.range("view_range")?;
    fields.finish()?;
    if let Some(kind) = unshown_kind(&name) {
        return Err(format!("file_path `{name}` is {kind}, which this tool cannot show yet"));
    }
    let (path, file) = open(run, &name)?;
    let bytes = file.metadata().map_err(|why| failed("read", &name, &why))?.size();
    match range {
        Some(range) => read_lines(run, &name, file, range),
        None if bytes > READ_BYTES_MAX => Err(format!(
            "file_path `{name}` has {bytes} bytes, more than the {READ_BYTES_MAX} that one call \
             shows; read it in parts with view_range"
        )),
        None => {
            drop(path);
            let mut content = Vec::new();
            // A file that grows meanwhile still cannot pass the bound.
            file.take(READ_BYTES_MAX)
                .read_to_end(&mut content)
                .map_err(|why| failed("read", &name, &why))?;
            if is_binary(&content) {
                return Err(binary(&name));
            }
            Ok(Answer::whole(String::from_utf8_lossy(&content).into_owned()))
        }
    }
}

fn read_lines(run: &Run<'_>, name: &str, file: File, range: LineRange) -> Result<Answer, String> {
    let mut lines = Lines::new(BufReader::new(file), READ_BYTES_MAX as usize);
    let (mut text, mut number, mut truncated_bytes) = (Vec::new(), 0, 0);
    loop {
        if run.over() {
            return Err(format!("reading `{name}` took too long; line {number} was reached"));
        }
        let line = lines.next().map_err(|why| failed("read", name, &why))?;
        let Some(Line { bytes, cut_bytes }) = line else { break };
        number += 1;
        if number == 1 && is_binary(&bytes) {
            return Err(binary(name));
        }
        if number < range.start {
            continue;
        }
        let room = (READ_BYTES_MAX as usize).saturating_sub(text.len());
        text.extend_from_slice(&bytes[..bytes.len().min(room)]);
        truncated_bytes += cut_bytes + bytes.len().saturating_sub(room) as u64;
        if truncated_bytes > 0 || range.end == Some(number) {
            break;
        }
    }
    if number < range.start {
        return Err(format!(
            "view_range starts at line {}, but `{name}` has {number}",
            range.start
        ));
    }
    let mut text = String::from_utf8_lossy(&text).into_owned();
    if truncated_bytes > 0 {
        text.push_str(&format!(
            "\n[... cut in line {number}: {READ_BYTES_MAX} bytes are the most that one call shows; \
             ask for fewer lines ...]\n"
        ));
    }
    Ok(Answer { text, truncated_bytes, ..Answer::whole(String::new()) })
}

pub(super) fn write(run: &Run<'_>, mut fields: Fields) -> Result<Answer, String> {
    let name = fields.string("file_path")?;
    let content = fields.string("content")?;
    fields.finish()?;
    let path = resolve(run, &name)?;
    let file = run.root.create(&path).map_err(|why| format!("file_path `{name}` {why}"))?;
    replace(file, content.as_bytes()).map_err(|why| failed("write", &name, &why))?;
    Ok(Answer::whole(format!("wrote {} bytes to {name}", content.len())))
}

pub(super) fn edit(run: &Run<'_>, mut fields: Fields) -> Result<Answer, String> {
    let name = fields.string("file_path")?;
    let old = fields.string("old_string")?;
    let new = fields.string("new_string")?;
    let all = fields.flag("replace_all")?;
    fields.finish()?;
    if old.is_empty() {
        return Err(
            "old_string is empty; give the text to replace, or use write for a new file".into()
        );
    }
    if old == new {
        return Err("old_string and new_string are identical: nothing to change".into());
    }
    let (path, file) = open(run, &name)?;
    let mut content = Vec::new();
    file.take(EDIT_BYTES_MAX + 1)
        .read_to_end(&mut content)
        .map_err(|why| failed("read", &name, &why))?;
    if content.len() as u64 > EDIT_BYTES_MAX {
        return Err(format!(
            "file_path `{name}` is larger than the {EDIT_BYTES_MAX} bytes that edit changes; use \
             bash"
        ));
    }
    let content = String::from_utf8(content)
        .map_err(|_| format!("file_path `{name}` is not UTF-8 text; use bash to change it"))?;
    let found = content.matches(&old).count();
    match (found, all) {
        (0, _) => return Err(format!("old_string was not found in `{name}`; read the file again")),
        (2.., false) => {
            return Err(format!(
                "old_string occurs {found} times in `{name}`; give more of the text around it, or \
                 set replace_all to true"
            ));
        }
        (1, false) | (1.., true) => {}
    }
    let grown = content.len() + found * new.len();
    if grown as u64 > 2 * EDIT_BYTES_MAX {
        return Err(format!("the edit would make `{name}` too large for this tool; use bash"));
    }
    let file = run.root.create(&path).map_err(|why| format!("file_path `{name}` {why}"))?;
    replace(file, content.replace(&old, &new).as_bytes())
        .map_err(|why| failed("write", &name, &why))?;
    let times = if found == 1 { "1 place".to_owned() } else { format!("{found} places") };
    Ok(Answer::whole(format!("changed {times} in {name}")))
}

/// Puts `content` in the place of what an open file holds; links and permissions stay.
fn replace(mut file: File, content: &[u8]) -> io::Result<()> {
    file.set_len(0)?;
    file.write_all(content)
}

fn open(run: &Run<'_>, name: &str) -> Result<(Inner, File), String> {
    let path = resolve(run, name)?;
    let file = run.root.read(&path).map_err(|why| format!("file_path `{name}` {why}"))?;
    Ok((path, file))
}

fn resolve(run: &Run<'_>, name: &str) -> Result<Inner, String> {
    run.root.resolve(name).map_err(|why| {
        // A name of thousands of characters says nothing more than its beginning.
        let shown: String = name.chars().take(200).collect();
        format!("file_path `{shown}` {why}")
    })
}

fn failed(verb: &str, name: &str, why: &io::Error) -> String {
    format!("cannot {verb} `{name}`: {why}")
}

fn binary(name: &str) -> String {
    format!("file_path `{name}` is a binary file; use bash to look into it")
}

pub(super) fn is_binary(start: &[u8]) -> bool {
    start[..start.len().min(SNIFF_BYTES)].contains(&0)
}

fn unshown_kind(name: &str) -> Option<&'static str> {
    let ending = name.rsplit_once('.')?.1.to_ascii_lowercase();
    match ending.as_str() {
        "png" | "jpg" | "jpeg" | "gif" | "webp" | "bmp" | "tiff" => Some("an image"),
        "pdf" => Some("a PDF document"),
        _ => None,
    }
}

impl Run<'_> {
    /// True when the call has used up its time or was stopped.
    pub(super) fn over(&self) -> bool {
        Instant::now() >= self.deadline || self.stop.asked()
    }
}
