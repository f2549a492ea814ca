//! `config.packages`: what is installed before the first call.

use serde_json::{Value, json};
use tailstep_core::{
    agent::Packages,
    packages::{Manager, PACKAGES_MAX, check},
};

use crate::{HandsFeatures, error::ApiError, fields::Fields};

/// Reads the object; a manager that it does not name installs nothing.
pub(super) fn read(hands: HandsFeatures, mut fields: Fields) -> Result<Packages, ApiError> {
    if fields.text("type")?.is_some_and(|kind| kind != "packages") {
        return Err(fields.error("type", "must be packages"));
    }
    let mut packages = Packages::default();
    for manager in Manager::ALL {
        let field = manager.as_str();
        if !hands.packages {
            fields.unsupported(field, "packages of this manager are")?;
            continue;
        }
        for (index, package) in fields.list(field)?.unwrap_or_default().into_iter().enumerate() {
            let wrong = |what: &str| fields.error(&format!("{field}[{index}]"), what);
            let Value::String(package) = package else { return Err(wrong("must be a string")) };
            check(manager, &package).map_err(wrong)?;
            packages.of_mut(manager).push(package);
        }
    }
    if packages.count() > PACKAGES_MAX {
        let count = packages.count();
        return Err(ApiError::invalid(format!(
            "config.packages: has {count} packages, at most {PACKAGES_MAX} are allowed"
        )));
    }
    fields.finish()?;
    Ok(packages)
}

pub(super) fn shown(packages: &Packages) -> Value {
    let mut shown = json!({"type": "packages"});
    for manager in Manager::ALL {
        shown[manager.as_str()] = json!(packages.of(manager));
    }
    shown
}
