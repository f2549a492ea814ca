//! Which crate may depend on which. Normal dependencies only: tests may use anything.

use std::collections::BTreeSet;

use crate::tree::run;

/// One crate's wall.
#[derive(Debug, Clone, Copy)]
pub struct Wall {
    pub package: &'static str,
    /// The only crates of this workspace that it may see, directly or through others.
    pub workspace: &'static [&'static str],
    /// Crates from outside that it must not see; a name that ends with `*` stands for all that begin
    /// so.
    pub outside: &'static [&'static str],
}

const AWS: &str = "aws*";
const LAMBDA: &str = "lambda*";
const SQLITE: &str = "rusqlite";

/// Architecture, as far as `cargo tree` can see it.
pub const WALLS: &[Wall] = &[
    Wall {
        package: "tailstep-core",
        workspace: &[],
        // No I/O, no clock, no randomness, no async.
        outside: &[
            "tokio*",
            "async*",
            "futures*",
            "getrandom",
            "rand*",
            "chrono",
            "time",
            "hyper*",
            "tracing*",
            SQLITE,
            AWS,
            LAMBDA,
        ],
    },
    Wall {
        package: "tailstep-runtime",
        workspace: &["tailstep-core"],
        outside: &["hyper*", "http", "reqwest", SQLITE, AWS, LAMBDA],
    },
    Wall {
        package: "tailstep-model",
        workspace: &["tailstep-core", "tailstep-runtime"],
        outside: &[SQLITE, "aws-sdk*", LAMBDA],
    },
    Wall {
        package: "tailstep-aws",
        workspace: &["tailstep-core", "tailstep-runtime"],
        outside: &[SQLITE, LAMBDA],
    },
    Wall {
        package: "tailstep-local",
        workspace: &["tailstep-core", "tailstep-runtime", "tailstep-egress", "tailstep-sandbox"],
        outside: &[AWS, LAMBDA],
    },
    Wall {
        package: "tailstep-api",
        workspace: &["tailstep-core", "tailstep-runtime"],
        outside: &[SQLITE, AWS, LAMBDA],
    },
    Wall {
        package: "tailstep-egress",
        workspace: &["tailstep-core"],
        outside: &[SQLITE, AWS, LAMBDA, "axum*"],
    },
    Wall {
        package: "tailstep-worker",
        workspace: &["tailstep-core", "tailstep-runtime"],
        outside: &[SQLITE, AWS, LAMBDA],
    },
    Wall {
        package: "tailstep-sandbox",
        workspace: &["tailstep-core"],
        outside: &[SQLITE, AWS, LAMBDA, "hyper*"],
    },
    Wall {
        package: "tailstep",
        workspace: &[
            "tailstep-core",
            "tailstep-runtime",
            "tailstep-model",
            "tailstep-local",
            "tailstep-egress",
            "tailstep-sandbox",
            "tailstep-api",
            "tailstep-worker",
        ],
        outside: &[AWS, LAMBDA],
    },
];

/// Every crate that is shipped to somebody.
pub const SHIPPED: &[&str] = &[
    "tailstep",
    "tailstep-fn-api",
    "tailstep-fn-step",
    "tailstep-fn-sandbox",
    "tailstep-fn-microvm",
    "tailstep-fn-sweep",
];

/// The feature under which bugs are compiled into the runtime.
pub const PLANTED: &str = "planted-bugs";

/// The normal dependencies of `package`, itself included, one `name version` a line.
///
/// # Errors
/// When cargo cannot tell.
pub fn cargo_tree(package: &str) -> Result<String, String> {
    run(&cargo(), &["tree", "--package", package, "--edges", "normal", "--prefix", "none"])
}

/// The same with the features that are on.
///
/// # Errors
/// When cargo cannot tell.
pub fn cargo_features(package: &str) -> Result<String, String> {
    run(&cargo(), &["tree", "--package", package, "--edges", "normal,features", "--prefix", "none"])
}

fn cargo() -> String {
    std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned())
}

/// What in `tree` is on the wrong side of `wall`.
pub fn breaches(wall: &Wall, tree: &str) -> Vec<String> {
    let names: BTreeSet<&str> =
        tree.lines().filter_map(|line| line.split_whitespace().next()).collect();
    let ours = |name: &str| name == "tailstep" || name.starts_with("tailstep-");
    let mut wrong = Vec::new();
    if !names.contains(wall.package) {
        wrong.push(format!("{} is not in its own tree", wall.package));
    }
    for name in names {
        let package = wall.package;
        if name == package {
            continue;
        }
        if ours(name) && !wall.workspace.contains(&name) {
            wrong.push(format!("{package} must not know {name}"));
        }
        if wall.outside.iter().any(|pattern| stands_for(pattern, name)) {
            wrong.push(format!("{package} must not depend on {name}"));
        }
    }
    wrong
}

fn stands_for(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => name == pattern,
    }
}

/// Whether the planted bugs are compiled into `package`, whose tree with features is `tree`.
pub fn plants_bugs(package: &str, tree: &str) -> Option<String> {
    let planted = tree.lines().any(|line| line.contains(PLANTED));
    planted.then(|| format!("{package} is built with the feature {PLANTED}"))
}
