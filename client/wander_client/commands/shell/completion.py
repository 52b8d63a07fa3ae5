"""`wander completion`: what makes a shell complete commands, options and names."""

from __future__ import annotations

from typing import Annotated

from wander_client.context import current
from wander_client.terminal.command import Argument, Option
from wander_client.terminal.suggestions import choose

BASH = r"""_wander() {
    local word
    COMPREPLY=()
    while IFS= read -r word; do
        COMPREPLY+=("$word")
    done < <(wander completion bash --line "${COMP_LINE:0:COMP_POINT}" 2>/dev/null)
}
# An older bash cannot keep the order; where nothing is suggested, files are.
complete -o nosort -o bashdefault -o default -F _wander wander 2>/dev/null ||
    complete -o bashdefault -o default -F _wander wander"""

ZSH = r"""#compdef wander
_wander() {
    local -a found
    found=("${(@f)$(wander completion zsh --line "${(j: :)words[1,CURRENT]}" 2>/dev/null)}")
    if [[ -n "$found[1]" ]]; then
        _describe -V wander found
    else
        _files
    fi
}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    _wander "$@"
else
    compdef _wander wander
fi"""

FISH = r"""function __wander_complete
    wander completion fish --line (commandline -cp) 2>/dev/null
end
complete -c wander -k -a '(__wander_complete)'"""

SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}


def completion(
    shell: Annotated[str, Argument(help="bash, zsh or fish")],
    line: Annotated[str | None, Option("--line", hidden=True)] = None,
) -> None:
    """Print what makes a shell complete commands, options, environments, runs and models.

    \b
    eval "$(wander completion bash)"                # in ~/.bashrc
    eval "$(wander completion zsh)"                 # in ~/.zshrc, after compinit
    wander completion fish > ~/.config/fish/completions/wander.fish

    Environments are those of this machine and of the hub, which is asked at most once a minute and waited for
    half a second.
    """
    here = current()
    choose("SHELL", shell, SCRIPTS)
    if line is None:
        here.output.answer({"shell": shell, "script": SCRIPTS[shell]}, SCRIPTS[shell])
        return
    from wander_client.commands.shell.suggestions import suggest

    found = suggest(line, here)
    if shell == "bash":
        # Bash takes the part after `=`, `:` or `@` for a word of its own.
        typed = line.rpartition(" ")[2]
        done = 1 + max(typed.rfind(sign) for sign in "=:@")
        shown = [word[done:] for word, _ in found]
    elif shell == "zsh":
        shown = [word.replace(":", r"\:") + (f":{about}" if about else "") for word, about in found]
    else:
        shown = [f"{word}\t{about}" if about else word for word, about in found]
    here.output.answer({"suggestions": [word for word, _ in found]}, "\n".join(shown) if shown else None)
