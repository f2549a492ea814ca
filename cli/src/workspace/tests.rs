use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
};

use super::{Change, Root, apply, changes, conflicts, copy, read_tree, write_patch};
use crate::style::Paint;

#[test]
fn a_folder_beyond_the_limit_is_refused_before_it_is_read() {
    let scratch = tempfile::tempdir().unwrap();
    let [from, to] = ["from", "to"].map(|name| scratch.path().join(name));
    fs::create_dir(&from).unwrap();
    // A terabyte without a block on the disk: reading it would take the test's whole time.
    fs::File::create(from.join("sparse")).unwrap().set_len(1 << 40).unwrap();
    let refused = copy(&Root::open(&from).unwrap(), &to, None).unwrap_err();
    let said = format!("{refused:#}");
    assert!(said.contains("sparse") && said.contains("4096 MB"), "{said}");
}

/// The user's folder, the copy that was taken of it, and the copy that the agent had.
struct Lent {
    _scratch: tempfile::TempDir,
    users: PathBuf,
    base: PathBuf,
    agents: PathBuf,
}

impl Lent {
    fn new(files: &[(&str, &str)]) -> Self {
        let scratch = tempfile::tempdir().unwrap();
        let [users, base, agents] =
            ["users", "base", "agents"].map(|name| scratch.path().join(name));
        fs::create_dir(&users).unwrap();
        for (path, text) in files {
            put(&users, path, text);
        }
        copy(&Root::open(&users).unwrap(), &base, None).unwrap();
        copy(&Root::open(&base).unwrap(), &agents, None).unwrap();
        Self { _scratch: scratch, users, base, agents }
    }

    fn changes(&self) -> Vec<Change> {
        let tree = |path: &Path| read_tree(&Root::open(path).unwrap(), None).unwrap();
        changes(&tree(&self.base), &tree(&self.agents))
    }

    fn patch(&self) -> String {
        let (base, agents) = (Root::open(&self.base).unwrap(), Root::open(&self.agents).unwrap());
        let mut out = Vec::new();
        write_patch(&mut out, &self.changes(), &base, &agents, Paint::Plain).unwrap();
        String::from_utf8(out).unwrap()
    }

    /// The conflicts, as text; applies the changes if there are none.
    fn apply(&self) -> Vec<String> {
        let users = Root::open(&self.users).unwrap();
        let changes = self.changes();
        let conflicts = conflicts(&users, &changes);
        if conflicts.is_empty() {
            apply(&users, &changes, &Root::open(&self.agents).unwrap()).unwrap();
        }
        conflicts.iter().map(|c| format!("{} {}", c.path.display(), c.why)).collect()
    }

    fn same_as_agents(&self) {
        let tree = |path: &Path| read_tree(&Root::open(path).unwrap(), None).unwrap();
        assert_eq!(tree(&self.users).leaves, tree(&self.agents).leaves);
    }
}

fn put(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

#[test]
fn every_kind_of_change_is_shown_and_applied() {
    let lent = Lent::new(&[
        ("keep", "same\n"),
        ("edit", "one\ntwo\n"),
        ("gone/deep", "bye\n"),
        ("mode", "#!/bin/sh\n"),
        ("file-to-folder", "x\n"),
        ("folder-to-file/a", "x\n"),
    ]);
    put(&lent.agents, "edit", "one\nzwei");
    put(&lent.agents, "new/a b", "new\n");
    fs::write(lent.agents.join("data"), b"\0\x01").unwrap();
    fs::remove_dir_all(lent.agents.join("gone")).unwrap();
    fs::set_permissions(lent.agents.join("mode"), fs::Permissions::from_mode(0o755)).unwrap();
    fs::remove_file(lent.agents.join("file-to-folder")).unwrap();
    put(&lent.agents, "file-to-folder/a", "y\n");
    fs::remove_dir_all(lent.agents.join("folder-to-file")).unwrap();
    put(&lent.agents, "folder-to-file", "y\n");
    symlink("keep", lent.agents.join("link")).unwrap();

    let patch = lent.patch();
    for expected in [
        "diff --git a/edit b/edit\n--- a/edit\n+++ b/edit\n@@ -1,2 +1,2 @@\n one\n-two\n+zwei\n\\ No newline at end of file\n",
        "diff --git a/new/a b b/new/a b\nnew file mode 100644\n--- /dev/null\n+++ b/new/a b\n",
        "diff --git a/data b/data\nnew file mode 100644\nBinary files /dev/null and b/data differ\n",
        "deleted file mode 100644\n--- a/gone/deep\n+++ /dev/null\n",
        "diff --git a/mode b/mode\nold mode 100644\nnew mode 100755\ndiff",
        "new file mode 120000\n--- /dev/null\n+++ b/link\n@@ -0,0 +1 @@\n+keep\n",
    ] {
        assert!(patch.contains(expected), "{expected}\nnot in\n{patch}");
    }
    assert!(!patch.contains("b/keep\n"), "{patch}");
    assert_eq!(lent.apply(), Vec::<String>::new());
    lent.same_as_agents();
    assert!(!lent.users.join("gone").exists(), "emptied folders go too");
    let mode = fs::metadata(lent.users.join("mode")).unwrap().permissions().mode();
    assert_eq!(mode & 0o111, 0o111);
}

#[test]
fn what_the_user_changed_meanwhile_is_named_and_nothing_is_applied() {
    let lent = Lent::new(&[("a", "1\n"), ("b", "1\n"), ("c", "1\n"), ("fine", "1\n")]);
    for name in ["a", "b", "fine"] {
        put(&lent.agents, name, "agent\n");
    }
    fs::remove_file(lent.agents.join("c")).unwrap();
    put(&lent.agents, "new", "agent\n");
    put(&lent.agents, "in/new", "agent\n");
    put(&lent.agents, "dir", "agent\n");
    put(&lent.users, "a", "user\n");
    fs::remove_file(lent.users.join("b")).unwrap();
    put(&lent.users, "c", "user\n");
    put(&lent.users, "new", "user\n");
    put(&lent.users, "in", "user\n");
    put(&lent.users, "dir/x", "user\n");
    assert_eq!(
        lent.apply(),
        [
            "a was changed meanwhile",
            "b was removed meanwhile",
            "c was changed meanwhile",
            "dir cannot be made, because dir is something else now",
            "in/new cannot be made, because in is something else now",
            "new was made meanwhile",
        ]
    );
    assert_eq!(fs::read_to_string(lent.users.join("fine")).unwrap(), "1\n");
}

#[test]
fn what_is_already_as_wanted_is_no_conflict() {
    let lent = Lent::new(&[("a", "1\n")]);
    put(&lent.agents, "a", "2\n");
    put(&lent.users, "a", "2\n");
    assert_eq!(lent.apply(), Vec::<String>::new());
    assert_eq!(lent.apply(), Vec::<String>::new(), "applying twice is applying once");
}

#[test]
fn nothing_is_written_through_a_link() {
    let lent = Lent::new(&[("dir/a", "1\n")]);
    let outside = tempfile::tempdir().unwrap();
    put(&lent.agents, "dir/a", "2\n");
    put(&lent.agents, "dir/new", "2\n");
    fs::remove_dir_all(lent.users.join("dir")).unwrap();
    symlink(outside.path(), lent.users.join("dir")).unwrap();
    put(outside.path(), "a", "1\n");
    assert_eq!(
        lent.apply(),
        ["dir/a lies behind a symbolic link", "dir/new lies behind a symbolic link"]
    );
    assert_eq!(fs::read_to_string(outside.path().join("a")).unwrap(), "1\n");
    assert!(!outside.path().join("new").exists());
}

#[test]
fn links_that_lead_out_are_refused() {
    let lent = Lent::new(&[("dir/a", "1\n")]);
    for (name, target) in
        [("abs", "/etc/passwd"), ("up", "../x"), ("dir/up", "../../x"), ("turn", "dir/../../x")]
    {
        symlink(target, lent.agents.join(name)).unwrap();
    }
    symlink("../dir/a", lent.agents.join("dir/fine")).unwrap();
    let refused = lent.apply();
    assert_eq!(refused.len(), 4, "{refused:?}");
    assert!(refused.iter().all(|line| line.ends_with("is a link that leads out of the folder")));
}

#[test]
fn an_agents_link_to_the_outside_is_not_read() {
    let lent = Lent::new(&[("a", "1\n")]);
    fs::remove_file(lent.agents.join("a")).unwrap();
    symlink("/etc/hostname", lent.agents.join("a")).unwrap();
    let patch = lent.patch();
    assert!(patch.contains("+/etc/hostname"), "the link is shown as a link: {patch}");
}

#[test]
fn version_control_stays_at_home_and_is_not_brought_back() {
    let lent =
        Lent::new(&[(".git/config", "token\n"), ("sub/.git/config", "token\n"), ("a", "1\n")]);
    assert!(!lent.base.join(".git").exists() && !lent.base.join("sub/.git").exists());
    put(&lent.agents, ".git/hooks/post-checkout", "#!/bin/sh\n");
    assert_eq!(lent.changes(), []);
}

#[test]
fn the_data_folder_inside_the_workspace_is_not_copied() {
    let lent = Lent::new(&[("a", "1\n"), (".tailstep/log", "x"), ("b/.tailstep/log", "y")]);
    let to = lent.users.join(".tailstep/copy");
    let users = Root::open(&lent.users).unwrap();
    let copied = copy(&users, &to, Some(&lent.users.join(".tailstep"))).unwrap();
    assert_eq!(copied.files, 2);
    assert!(to.join("b/.tailstep/log").exists() && !to.join(".tailstep").exists());
}

#[test]
fn pipes_are_left_out_and_do_not_block() {
    let lent = Lent::new(&[("a", "1\n")]);
    let made = std::process::Command::new("mkfifo").arg(lent.agents.join("pipe")).status().unwrap();
    assert!(made.success());
    let tree = read_tree(&Root::open(&lent.agents).unwrap(), None).unwrap();
    assert_eq!(tree.left_out, [(PathBuf::from("pipe"), "not a file")]);
    assert_eq!(lent.changes(), []);
}

#[test]
fn names_that_could_mislead_are_quoted() {
    let lent = Lent::new(&[]);
    put(&lent.agents, "a\n+++ b", "x\n");
    put(&lent.agents, "q\"", "x\n");
    let patch = lent.patch();
    assert!(patch.contains("+++ \"b/a\\012+++ b\"\n"), "{patch}");
    assert!(patch.contains("+++ \"b/q\\\"\"\n"), "{patch}");
}
