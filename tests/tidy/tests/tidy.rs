//! The checks on the repository as it is, and each of them on something that is wrong.

use tests_tidy::{
    documents::{missing_paths, missing_targets, missing_tests, readme_size},
    source::{beyond_the_aim, long_mains, machine_paths, repeated_calls, too_long, unsafe_code},
    tree::{File, files, root},
    walls::{SHIPPED, WALLS, Wall, breaches, cargo_features, cargo_tree, plants_bugs},
};

#[track_caller]
fn nothing(wrong: Vec<String>) {
    assert!(wrong.is_empty(), "\n  {}", wrong.join("\n  "));
}

#[track_caller]
fn found(wrong: &[String], what: &str) {
    assert!(wrong.iter().any(|wrong| wrong.contains(what)), "{what:?} is not in {wrong:?}");
}

#[test]
fn crates_stay_behind_their_walls() {
    let wrong = WALLS.iter().flat_map(|wall| breaches(wall, &cargo_tree(wall.package).unwrap()));
    nothing(wrong.collect());
}

#[test]
fn nothing_that_is_shipped_holds_planted_bugs() {
    let wrong = SHIPPED.iter().filter_map(|package| {
        let tree = cargo_features(package).unwrap();
        let hands_only = ["tailstep-fn-sandbox", "tailstep-fn-microvm"].contains(package);
        assert!(tree.contains("tailstep-runtime") || hands_only);
        plants_bugs(package, &tree)
    });
    nothing(wrong.collect());
}

#[test]
fn files_are_short_enough() {
    let files = files().unwrap();
    nothing(too_long(&files));
    for file in beyond_the_aim(&files) {
        eprintln!("beyond the aim: {file}");
    }
}

#[test]
fn mains_of_functions_only_wire() {
    nothing(long_mains(&files().unwrap()));
}

#[test]
fn each_effect_and_each_append_has_one_call_site() {
    nothing(repeated_calls(&files().unwrap()));
}

#[test]
fn no_file_names_the_machine_it_was_written_on() {
    nothing(machine_paths(&files().unwrap()));
}

#[test]
fn code_outside_the_sandbox_is_safe() {
    nothing(unsafe_code(&files().unwrap()));
}

#[test]
fn what_the_readme_names_exists() {
    let Ok(readme) = std::fs::read_to_string(root().join("README.md")) else {
        panic!("there is no README.md");
    };
    let makefile = std::fs::read_to_string(root().join("Makefile")).unwrap();
    nothing(readme_size(&readme).into_iter().collect());
    nothing(missing_targets(&readme, &makefile));
}

#[test]
fn what_the_architecture_names_exists() {
    let text = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let roots = [
        "shared",
        "functions",
        "cli",
        "tests",
        "infra",
        "console",
        "docs",
        "examples",
        "template.yaml",
    ];
    nothing(missing_paths(&text, &roots, |path| root().join(path).exists()));
}

#[test]
fn a_breached_wall_is_seen() {
    let wall = Wall {
        package: "tailstep-api",
        workspace: &["tailstep-core"],
        outside: &["rusqlite", "aws*"],
    };
    let good = "tailstep-api v0.1.0 (path)\ntailstep-core v0.1.0\nserde v1.0.0 (*)\n";
    nothing(breaches(&wall, good));
    found(
        &breaches(&wall, &format!("{good}tailstep-local v0.1.0\n")),
        "must not know tailstep-local",
    );
    found(&breaches(&wall, &format!("{good}rusqlite v0.36.0\n")), "must not depend on rusqlite");
    found(&breaches(&wall, &format!("{good}aws-sdk-s3 v1.0.0\n")), "must not depend on aws-sdk-s3");
    found(&breaches(&wall, "error"), "not in its own tree");
}

#[test]
fn a_planted_bug_in_a_product_is_seen() {
    // The simulator's own tree holds the feature: the check can see it.
    let tree = cargo_features("tests-sim").unwrap();
    assert!(plants_bugs("tests-sim", &tree).is_some());
}

#[test]
fn bad_source_is_seen() {
    let long = File::new("a.rs", &"\n".repeat(601));
    found(&too_long(std::slice::from_ref(&long)), "a.rs has 601 lines");
    found(&beyond_the_aim(&[long]), "a.rs: 601 lines");
    let tested = format!("{}#[cfg(test)]\nmod tests {{{}", "\n".repeat(390), "\n".repeat(100));
    nothing(beyond_the_aim(&[File::new("b.rs", &tested)]));

    let main = File::new("functions/api/src/main.rs", &"\n".repeat(61));
    found(&long_mains(&[main]), "has 61 lines");
    found(&long_mains(&[]), "no main");

    let once = ".model.call(x) .hands.execute(x) .log.append(x)";
    let calls = |path, text| File::new(path, text);
    nothing(repeated_calls(&[calls("shared/runtime/src/step.rs", once)]));
    let twice = [
        calls("shared/runtime/src/step.rs", once),
        calls("shared/runtime/src/sweep.rs", "runtime\n    .model\n    .call(&request)"),
    ];
    found(&repeated_calls(&twice), "`.model.call(` is in 2 places");
    found(&repeated_calls(&[]), "`.log.append(` is in 0 places");

    let path = ["/wo", "rk/main"].concat();
    found(&machine_paths(&[File::new("c.md", &format!("see\n{path}"))]), "c.md:2");

    nothing(machine_paths(&[File::new("c.md", "GET /v1/environments/{id}/work/poll")]));

    let code = ["let x = uns", "afe { y };"].concat();
    found(&unsafe_code(&[File::new("cli/src/d.rs", &code)]), "cli/src/d.rs:1");
    nothing(unsafe_code(&[File::new("shared/sandbox/src/d.rs", &code)]));
    nothing(unsafe_code(&[File::new("cli/src/d.rs", &format!("// {code}"))]));
}

#[test]
fn every_claim_about_security_has_its_test() {
    let text = std::fs::read_to_string(root().join("docs/security.md")).unwrap();
    let source = |file: &str| std::fs::read_to_string(root().join(file)).ok();
    nothing(missing_tests(&text, source));
}

#[test]
fn bad_documents_are_seen() {
    let source = |file: &str| (file == "a.rs").then(|| "async fn there() {}".to_owned());
    let missing = missing_tests("`a.rs::there` `a.rs::gone` `b.rs::there` `core::x`", source);
    assert_eq!(
        missing,
        ["`a.rs::gone` is named and does not exist", "`b.rs::there` is named and does not exist"]
    );
    assert!(readme_size("short").is_some());
    assert!(readme_size(&"line\n".repeat(100)).is_none());
    assert!(readme_size(&"line\n".repeat(161)).is_some());

    let makefile = "test: build\n\tcargo test\nsim lint:\n\tmake nonsense\n";
    let text = "Run `make test` and:\n```sh\nmake sim lint SEEDS=5  # make sense\nmake demo\n```\nwe make do";
    assert_eq!(missing_targets(text, makefile), ["`make demo` is named and does not exist"]);

    let there = |path: &str| ["shared/core", "functions"].contains(&path);
    let text =
        "`shared/core/` has `shared/cone`, `functions/*` and `other/thing`; shared/none is prose";
    let missing = missing_paths(text, &["shared", "functions"], there);
    assert_eq!(missing, ["`shared/cone` is named and does not exist"]);
}
