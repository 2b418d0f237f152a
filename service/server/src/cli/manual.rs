//! `latchgate completions` and `latchgate man`: what the command line itself says, for shells and for `man`.

use std::fs;
use std::io::{Write as _, stdout};

use clap::Command;
use clap_complete::Shell;

use super::print::not_printed;
use crate::config::{CompletionsArgs, ManArgs, command};

// Keys and apps, which a node knows: behind what clap completes.

const BASH_NAMES: &str = r#"
_latchgate_names() {
    local cur=${COMP_WORDS[COMP_CWORD]} names=()
    if [[ ${COMP_WORDS[COMP_CWORD - 1]} == --app ||
        $cur != -* && ${COMP_WORDS[1]} == app?(s) && ${COMP_WORDS[2]} != list && $COMP_CWORD == 3 ]]; then
        mapfile -t names < <(latchgate app list 2>/dev/null </dev/null | cut -f 1)
    elif [[ $cur != -* && (${COMP_WORDS[1]} == lock && $COMP_CWORD == 2 ||
        ${COMP_WORDS[1]} == locks && ${COMP_WORDS[2]} != list && $COMP_CWORD == 3) ]]; then
        mapfile -t names < <(latchgate locks list --all --prefix "$cur" --limit 100 2>/dev/null </dev/null | cut -f 1)
    else
        _latchgate "$@"
        return
    fi
    local name
    COMPREPLY=()
    for name in "${names[@]}"; do
        [[ $name != "$cur"* ]] || COMPREPLY+=("$(printf %q "$name")")
    done
}
complete -F _latchgate_names -o bashdefault -o default latchgate
"#;

const ZSH_NAMES: &str = r#"
_latchgate_names() {
    local -a names
    if [[ $words[CURRENT-1] == --app ||
        $words[CURRENT] != -* && $words[2] == (app|apps) && $words[3] != list && $CURRENT == 4 ]]; then
        names=(${(f)"$(latchgate app list 2>/dev/null </dev/null | cut -f 1)"})
    elif [[ $words[CURRENT] != -* && ( $CURRENT == 3 && $words[2] == lock ||
        $CURRENT == 4 && $words[2] == locks && $words[3] != list ) ]]; then
        names=(${(f)"$(latchgate locks list --all --prefix "$words[CURRENT]" --limit 100 2>/dev/null </dev/null | cut -f 1)"})
    else
        _latchgate "$@"
        return
    fi
    compadd -a names
}
compdef _latchgate_names latchgate
"#;

const FISH_NAMES: &str = r#"
function __fish_latchgate_words
    test (count (commandline -opc)) -eq $argv[1]
end
complete -c latchgate -l app -x -a '(latchgate app list 2>/dev/null </dev/null | cut -f 1)'
function __fish_latchgate_wants_app
    __fish_latchgate_words 3; and __fish_seen_subcommand_from app apps; and not __fish_seen_subcommand_from list
end
complete -c latchgate -f -n __fish_latchgate_wants_app -a '(latchgate app list 2>/dev/null </dev/null | cut -f 1)'
function __fish_latchgate_wants_key
    if __fish_latchgate_words 2
        __fish_seen_subcommand_from lock
    else if __fish_latchgate_words 3
        __fish_seen_subcommand_from locks; and not __fish_seen_subcommand_from list
    else
        false
    end
end
complete -c latchgate -f -n __fish_latchgate_wants_key \
    -a '(latchgate locks list --all --prefix (commandline -ct) --limit 100 2>/dev/null </dev/null | cut -f 1)'
"#;

/// # Errors
/// When the output cannot be written.
pub fn completions(args: &CompletionsArgs) -> anyhow::Result<()> {
    let mut script = Vec::new();
    // That for bash would offer hidden commands.
    let all = command();
    let shown = all.get_subcommands().filter(|command| !command.is_hide_set()).cloned();
    let mut offered = Command::new("latchgate")
        .version(env!("CARGO_PKG_VERSION"))
        .args(all.get_arguments().cloned())
        .subcommands(shown);
    clap_complete::generate(args.shell, &mut offered, "latchgate", &mut script);
    script.extend_from_slice(match args.shell {
        Shell::Bash => BASH_NAMES.as_bytes(),
        Shell::Zsh => ZSH_NAMES.as_bytes(),
        Shell::Fish => FISH_NAMES.as_bytes(),
        _ => &[],
    });
    print(&script);
    Ok(())
}

/// # Errors
/// When the pages cannot be written.
pub fn man(args: &ManArgs) -> anyhow::Result<()> {
    match &args.directory {
        Some(directory) => {
            fs::create_dir_all(directory)?;
            clap_mangen::generate_to(command(), directory)?;
        }
        None => {
            let mut page = Vec::new();
            clap_mangen::Man::new(command()).render(&mut page)?;
            print(&page);
        }
    }
    Ok(())
}

fn print(text: &[u8]) {
    let mut stdout = stdout();
    if let Err(error) = stdout.write_all(text).and_then(|()| stdout.flush()) {
        not_printed(&error);
    }
}
