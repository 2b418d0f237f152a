//! Refuses misspelt `LATCHGATE_…` variables: an unknown one would silently leave a setting at its default.

use std::ffi::OsString;

use anyhow::bail;
use clap::error::{ContextKind, ContextValue};

const PREFIX: &str = "LATCHGATE_";
/// What `latchgate lock` sets for the program that it runs. No setting reads them.
const OF_LOCK: [&str; 3] = ["LATCHGATE_TOKEN", "LATCHGATE_LEASE", "LATCHGATE_SLOT"];

/// The variable of a flag.
pub fn variable(flag: &str) -> String {
    format!("{PREFIX}{}", flag.to_uppercase().replace('-', "_"))
}

/// The variables that the flags of all commands read.
fn names_of(command: &clap::Command) -> Vec<String> {
    let own = command.get_arguments().filter_map(|argument| Some(argument.get_env()?.to_str()?.to_owned()));
    own.chain(command.get_subcommands().flat_map(names_of)).collect()
}

/// # Errors
/// Names the variable, and the setting that was probably meant.
pub fn refuse_unknown(
    environment: impl Iterator<Item = (OsString, OsString)>,
    command: &clap::Command,
) -> anyhow::Result<()> {
    let names = names_of(command);
    for (name, value) in environment {
        let (name, value) = (name.to_string_lossy(), value.to_string_lossy());
        if !name.starts_with(PREFIX)
            || names.iter().any(|known| *known == name)
            || OF_LOCK.contains(&&*name)
            || is_service_link(&name, &value)
        {
            continue;
        }
        match nearest(command, &name) {
            Some(nearest) => bail!("no setting reads the environment variable {name}: did you mean {nearest}?"),
            None => bail!(
                "no setting reads the environment variable {name}: unset it; `latchgate serve --help` lists the settings"
            ),
        }
    }
    Ok(())
}

/// The variable of the flag that clap would suggest for this one's.
fn nearest(command: &clap::Command, name: &str) -> Option<String> {
    let flag = format!("--{}", name.strip_prefix(PREFIX)?.to_lowercase().replace('_', "-"));
    let error = command.clone().try_get_matches_from(["latchgate", "serve", &flag]).err()?;
    match error.get(ContextKind::SuggestedArg)? {
        ContextValue::String(flag) => Some(variable(flag.trim_start_matches('-'))),
        _ => None,
    }
}

/// Kubernetes and Docker describe a service called `latchgate` (or `latchgate-…`) to every container:
/// `LATCHGATE_SERVICE_HOST`, `LATCHGATE_PORT=tcp://…`, `LATCHGATE_PORT_7070_TCP_ADDR`.
fn is_service_link(name: &str, value: &str) -> bool {
    let is_numbered_port = |rest: &str| rest.starts_with(|first: char| first.is_ascii_digit());
    name.ends_with("_SERVICE_HOST")
        || name.contains("_SERVICE_PORT")
        || name.split("_PORT_").skip(1).any(is_numbered_port)
        || (name.ends_with("_PORT") && value.contains("://"))
}

#[cfg(test)]
mod tests {
    use super::super::command;
    use super::*;

    fn refused(name: &str, value: &str) -> Option<String> {
        let environment = [(OsString::from(name), OsString::from(value))];
        refuse_unknown(environment.into_iter(), &command()).err().map(|error| error.to_string())
    }

    #[test]
    fn a_misspelt_variable_is_refused_with_the_nearest_name() {
        for (wrong, right) in [
            ("LATCHGATE_LOCK", "LATCHGATE_LOCKS"),
            ("LATCHGATE_TTL_MS_DEFAULT", "LATCHGATE_TTL_DEFAULT"),
            ("LATCHGATE_LISTEN_ADDRESS", "LATCHGATE_LISTEN"),
            ("LATCHGATE_LOGFORMAT", "LATCHGATE_LOG_FORMAT"),
        ] {
            let error = refused(wrong, "x").unwrap_or_else(|| panic!("{wrong} was accepted"));
            assert!(error.contains(wrong) && error.ends_with(&format!("did you mean {right}?")), "{error}");
        }
        let error = refused("LATCHGATE_QUUX", "x").unwrap();
        assert!(error.contains("LATCHGATE_QUUX") && !error.contains("did you mean"), "{error}");
    }

    #[test]
    fn settings_other_programs_variables_and_service_links_are_accepted() {
        for (name, value) in [
            ("LATCHGATE_LOCKS", "sqlite:a.db"),
            ("PATH", "/bin"),
            ("LATCHGATE_SERVICE_HOST", "10.0.0.1"),
            ("LATCHGATE_SERVICE_PORT_HTTP", "7070"),
            ("LATCHGATE_NODES_SERVICE_PORT", "7070"),
            ("LATCHGATE_PORT", "tcp://10.0.0.1:7070"),
            ("LATCHGATE_PORT_7070_TCP_ADDR", "10.0.0.1"),
        ] {
            assert_eq!(refused(name, value), None, "{name}");
        }
        assert!(refused("LATCHGATE_PORT", "7071").is_some(), "a port that nothing reads");
    }
}
