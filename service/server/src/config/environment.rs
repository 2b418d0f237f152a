//! Notices misspelt `LATCHGATE_…` variables: an unknown one would silently leave a setting at its default.

use std::ffi::{OsStr, OsString};

use anyhow::bail;

const PREFIX: &str = "LATCHGATE_";
/// What `latchgate lock` sets for the program that it runs. No setting reads them.
const OF_LOCK: [&str; 3] = ["LATCHGATE_TOKEN", "LATCHGATE_LEASE", "LATCHGATE_SLOT"];

/// Without a value in these, other stores or another service would be used, or what protects the service would be missing: an empty one is
/// refused. Every other empty variable counts as absent.
const NEVER_EMPTY: [&str; 9] = [
    "LATCHGATE_URL",
    "LATCHGATE_CA",
    "LATCHGATE_LOCKS",
    "LATCHGATE_LOCKS_DIRECT",
    "LATCHGATE_GATE",
    "LATCHGATE_REDIS_PREFIX",
    "LATCHGATE_SECRET",
    "LATCHGATE_TLS_CERT",
    "LATCHGATE_TLS_KEY",
];

/// Whether the variable is set and empty, and counts as absent: `${NAME:-}` in a compose file, say.
pub fn is_absent(name: &OsStr) -> bool {
    let is_empty = std::env::var_os(name).is_some_and(|value| value.is_empty());
    is_empty && !NEVER_EMPTY.iter().any(|never| name == *never)
}

/// The variable of a flag.
pub fn variable(flag: &str) -> String {
    format!("{PREFIX}{}", flag.to_uppercase().replace('-', "_"))
}

/// The variables that the flags of all commands read.
fn names_of(command: &clap::Command) -> Vec<String> {
    let own = command.get_arguments().filter_map(|argument| Some(argument.get_env()?.to_str()?.to_owned()));
    own.chain(command.get_subcommands().flat_map(names_of)).collect()
}

/// Warns of each variable that no setting reads; if `is_quiet`, only of those that are nearly one of a setting.
///
/// # Errors
/// Of a node, names a variable that is nearly one of a setting: the setting would silently have its default.
pub fn check(
    environment: impl Iterator<Item = (OsString, OsString)>,
    command: &clap::Command,
    is_node: bool,
    is_quiet: bool,
) -> anyhow::Result<()> {
    // A node is stopped by what is near its own settings only.
    let read = if is_node { command.find_subcommand("serve").unwrap_or(command) } else { command };
    for (name, nearest) in unknown(environment, command, &names_of(read)) {
        match nearest {
            Some(nearest) if is_node => {
                bail!("no setting reads the environment variable {name}: did you mean {nearest}?")
            }
            Some(nearest) => {
                eprintln!("latchgate: no setting reads the environment variable {name}: did you mean {nearest}?")
            }
            None if is_quiet => {}
            None => eprintln!("latchgate: no setting reads the environment variable {name}"),
        }
    }
    Ok(())
}

/// The variables that no setting reads, each with that of `meant` which was probably meant.
fn unknown(
    environment: impl Iterator<Item = (OsString, OsString)>,
    command: &clap::Command,
    meant: &[String],
) -> impl Iterator<Item = (String, Option<String>)> {
    let names = names_of(command);
    environment.filter_map(move |(name, value)| {
        let (name, value) = (name.to_string_lossy(), value.to_string_lossy());
        let is_known = !name.starts_with(PREFIX)
            || names.iter().any(|known| *known == name)
            || OF_LOCK.contains(&&*name)
            || is_service_link(&name, &value);
        (!is_known).then(|| (name.to_string(), nearest(meant, &name)))
    })
}

/// The variable of a setting that has most likely been meant: of its letters, at most one in four is another, or one name goes on where the
/// other one ends.
fn nearest(meant: &[String], name: &str) -> Option<String> {
    let goes_on = |long: &str, short: &str| long.strip_prefix(short).is_some_and(|rest| rest.starts_with('_'));
    let most = (name.len() - PREFIX.len()).max(4) / 4;
    let distance = |known: &&String| strsim::osa_distance(known, name);
    let is_near = |known: &&String| goes_on(known, name) || goes_on(name, known) || distance(known) <= most;
    meant.iter().filter(is_near).min_by_key(distance).cloned()
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
        let environment = || [(OsString::from(name), OsString::from(value))].into_iter();
        assert!(check(environment(), &command(), false, false).is_ok(), "{name}: a client's command only warns");
        check(environment(), &command(), true, false).err().map(|error| error.to_string())
    }

    fn is_unknown(name: &str, value: &str) -> bool {
        unknown([(OsString::from(name), OsString::from(value))].into_iter(), &command(), &[]).count() == 1
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
        for own in ["LATCHGATE_QUUX", "LATCHGATE_USER", "LATCHGATE_DATA", "LATCHGATE_RELEASE", "LATCHGATE_BACKUP_DIR"] {
            assert!(is_unknown(own, "x") && refused(own, "x").is_none(), "{own} is near no setting");
        }
    }

    #[test]
    fn a_command_names_the_variable_of_a_client_that_was_meant() {
        let environment = [(OsString::from("LATCHGATE_APIKEY"), OsString::from("x"))].into_iter();
        let meant = Some("LATCHGATE_API_KEY".to_owned());
        assert_eq!(unknown(environment, &command(), &names_of(&command())).next().unwrap().1, meant);
        assert!(refused("LATCHGATE_APIKEY", "x").is_none(), "it is near no setting of a node");
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
            assert!(!is_unknown(name, value), "{name}");
        }
        assert!(is_unknown("LATCHGATE_PORT", "7071"), "a port that nothing reads");
    }
}
