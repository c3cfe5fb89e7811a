# Parse the arguments of a tool file and run its command (spec/graph-agents.md 4.2).
#
# What a file declares comes from functions that program.py writes: `_slp_command_N` calls _slp_command, _slp_parameter,
# _slp_env, _slp_symbol and _slp_below, which fill the tables. The file's own code is sourced in between.
#
# Rules. This works on bash 4.0 and later, under `set -euo pipefail` and with any IFS: expansions are quoted, and an
# array that may be empty is expanded with `+`. Arguments are never evaluated: `eval`, `printf -v` and
# `${!x}` see only the names of variables, which program.py checked. Texts may hold anything.
# A default is empty, "text:<text>" or "function:<name>"; so are choices, one to a line. Empty fields are left out,
# because a program is one argument of bash, and the kernel limits its length. No line continues a text, and no line but
# a comment starts with #: program.py drops comments and indentation.

_slp_command() {
    _slp_field_title= _slp_field_version= _slp_field_function= _slp_field_takes_everything= _slp_field_default_command=
    _slp_field_children_check=
    _slp_fields "$@"
    _slp_title=$_slp_field_title _slp_usage=$_slp_field_usage _slp_version=$_slp_field_version
    _slp_function=$_slp_field_function _slp_takes_everything=$_slp_field_takes_everything
    _slp_default_command=$_slp_field_default_command _slp_children_check=$_slp_field_children_check
    _slp_kind=() _slp_var=() _slp_name=() _slp_label=() _slp_notation=() _slp_min=() _slp_max=() _slp_list=()
    _slp_multiple=() _slp_delimiter=() _slp_rest=() _slp_assigned=() _slp_prefixed=() _slp_required=() _slp_bound=()
    _slp_default=() _slp_choices=()
    _slp_spellings=() _slp_owners=() _slp_signs=- _slp_arguments=()
    _slp_envs=() _slp_env_required=() _slp_env_default=() _slp_env_choices=()
    _slp_symbols=() _slp_tools=() _slp_below_names=() _slp_below_entries=()
}

# Put each `field=value` into _slp_field_<field>.
_slp_fields() {
    local word
    for word in "$@"; do
        printf -v "_slp_field_${word%%=*}" %s "${word#*=}"
    done
}

# The fields of an option, a flag or an argument, then `--` and its spellings, of which the last is its name.
_slp_parameter() {
    local at=${#_slp_kind[@]}
    _slp_field_kind=option _slp_field_name= _slp_field_label= _slp_field_min=1 _slp_field_max=1
    _slp_field_notation= _slp_field_list= _slp_field_multiple= _slp_field_delimiter= _slp_field_rest=
    _slp_field_assigned= _slp_field_prefixed= _slp_field_required= _slp_field_bound=
    _slp_field_default= _slp_field_choices=
    while [[ $1 != -- ]]; do
        _slp_fields "$1"
        shift
    done
    shift
    if [[ -z $_slp_field_name ]]; then
        _slp_field_name=${!#}
    fi
    if [[ -z $_slp_field_label ]]; then
        _slp_field_label=$_slp_field_name${_slp_field_notation:+ $_slp_field_notation}
    fi
    _slp_kind[at]=$_slp_field_kind _slp_var[at]=$_slp_field_var _slp_name[at]=$_slp_field_name
    _slp_label[at]=$_slp_field_label _slp_notation[at]=$_slp_field_notation
    _slp_min[at]=$_slp_field_min _slp_max[at]=$_slp_field_max _slp_list[at]=$_slp_field_list
    _slp_multiple[at]=$_slp_field_multiple _slp_delimiter[at]=$_slp_field_delimiter _slp_rest[at]=$_slp_field_rest
    _slp_assigned[at]=$_slp_field_assigned _slp_prefixed[at]=$_slp_field_prefixed
    _slp_required[at]=$_slp_field_required _slp_bound[at]=$_slp_field_bound
    _slp_default[at]=$_slp_field_default _slp_choices[at]=$_slp_field_choices
    if [[ $_slp_field_kind == argument ]]; then
        _slp_arguments+=("$at")
    fi
    while [[ $# -gt 0 ]]; do
        _slp_spellings+=("$1") _slp_owners+=("$at") _slp_signs+=${1:0:1}
        shift
    done
    if ! _slp_is_given "$at"; then
        unset -v "${_slp_var[at]}" # the caller's environment may hold one
    fi
}

_slp_env() {
    _slp_field_required= _slp_field_default= _slp_field_choices=
    _slp_fields "$@"
    _slp_envs+=("$_slp_field_name") _slp_env_required+=("$_slp_field_required")
    _slp_env_default+=("$_slp_field_default") _slp_env_choices+=("$_slp_field_choices")
}

# A sign, the variable that it sets, and choices.
_slp_symbol() {
    _slp_symbols+=("$@")
    unset -v "$2"
}

# The function that describes a command below this one, and the names of that command.
_slp_below() {
    local entry=$1
    shift
    while [[ $# -gt 0 ]]; do
        _slp_below_names+=("$1") _slp_below_entries+=("$entry")
        shift
    done
}

_slp_run() {
    _slp_parse "$@"
    # None of our local variables is alive while the tool's own code runs.
    if declare -F _argc_before >/dev/null; then
        _argc_before
    fi
    if [[ -z $argc__fn ]]; then
        return 0
    fi
    "$argc__fn" ${argc__positionals[@]+"${argc__positionals[@]}"}
    # Whatever comes last gives the exit code, as it does in the file of the real program.
    _slp_status=$?
    if declare -F _argc_after >/dev/null; then
        _argc_after
    else
        return "$_slp_status"
    fi
}

_slp_parse() {
    argc__args=("$_slp_program" "$@") argc__positionals=() argc__fn=
    _slp_words=("$@") _slp_at=0 _slp_dash=0 _slp_given_vars=' ' _slp_missing=
    _slp_load_dotenv
    _slp_command_0
    while [[ $_slp_at -lt ${#_slp_words[@]} ]]; do
        _slp_next "${_slp_words[_slp_at]}"
    done
    if [[ ${#_slp_below_names[@]} -gt 0 && ${#_slp_arguments[@]} -eq 0 && -z $_slp_function ]]; then
        _slp_enter_default
    fi
    _slp_settle_options
    _slp_settle_arguments
    if [[ -n $_slp_missing ]]; then
        _slp_die "error: the following required arguments were not provided:$_slp_missing"
    fi
    _slp_settle_envs
    _slp_require_tools
    argc__fn=$_slp_function
}

_slp_load_dotenv() {
    if [[ -z $_slp_dotenv || ! -f $_slp_dotenv ]]; then
        return 0
    fi
    _slp_flags=$-
    set -a
    source "$_slp_dotenv"
    if [[ $_slp_flags != *a* ]]; then
        set +a
    fi
}

# Handle one word, and move past everything that belongs to it.
_slp_next() {
    local word=$1 key=${1%%=*}
    _slp_done=
    if [[ -n $_slp_takes_everything ]]; then
        _slp_take_all
    elif [[ $word == -- ]]; then
        _slp_dash=${#argc__positionals[@]} _slp_at=$((_slp_at + 1))
        _slp_take_all
    else
        _slp_try_option "$word" "$key"
        _slp_try_help "$word"
        _slp_try_symbol "$word"
        _slp_try_shorts "$word"
        _slp_try_command "$word"
        if [[ -n $_slp_done ]]; then
            return 0
        elif [[ ${#_slp_spellings[@]} -gt 0 && ${#word} -gt 1 && $_slp_signs == *"${word:0:1}"* ]]; then
            _slp_die "error: unexpected argument \`$key\` found"
        elif [[ ${#_slp_below_names[@]} -gt 0 && ${#_slp_arguments[@]} -eq 0 ]]; then
            _slp_enter_default
        else
            _slp_take_argument "$word"
        fi
    fi
}

_slp_take_argument() {
    local last=-1
    argc__positionals+=("$1") _slp_at=$((_slp_at + 1))
    if [[ ${#_slp_arguments[@]} -gt 0 ]]; then
        last=${_slp_arguments[${#_slp_arguments[@]} - 1]}
    fi
    if [[ $last -ge 0 && -n ${_slp_rest[last]} && ${#argc__positionals[@]} -ge $((${#_slp_arguments[@]} - 1)) ]]; then
        _slp_take_all
    fi
}

_slp_take_all() {
    while [[ $_slp_at -lt ${#_slp_words[@]} ]]; do
        argc__positionals+=("${_slp_words[_slp_at]}") _slp_at=$((_slp_at + 1))
    done
}

_slp_try_option() {
    local word=$1 key=$2 at owner spelling
    for ((at = 0; at < ${#_slp_spellings[@]}; at++)); do
        owner=${_slp_owners[at]} spelling=${_slp_spellings[at]}
        if [[ -n ${_slp_prefixed[owner]} && $word == "$spelling"?* ]]; then
            _slp_take_option "$owner" "$word" "${word#"$spelling"}"
            return 0
        elif [[ $key == "$spelling" ]]; then
            _slp_take_option "$owner" "$word"
            return 0
        fi
    done
}

# An option in use as `word`; its value too, where that is part of the word without a `=`.
_slp_take_option() {
    local at=$1 word=$2 next
    _slp_done=1 _slp_values=() _slp_at=$((_slp_at + 1))
    if [[ ${_slp_kind[at]} == flag ]]; then
        _slp_take_flag "$at" "$word"
        return 0
    fi
    if [[ $# -gt 2 ]]; then
        _slp_values=("$3")
    elif [[ $word == *=* ]]; then
        _slp_values=("${word#*=}")
    elif [[ -z ${_slp_assigned[at]} ]]; then
        while [[ $_slp_at -lt ${#_slp_words[@]} && ${#_slp_values[@]} -lt ${_slp_max[at]} ]]; do
            next=${_slp_words[_slp_at]}
            if [[ -z ${_slp_rest[at]} && ${#next} -gt 1 && $_slp_signs == *"${next:0:1}"* ]]; then
                break
            fi
            _slp_values+=("$next") _slp_at=$((_slp_at + 1))
        done
    fi
    if [[ ${#_slp_values[@]} -lt ${_slp_min[at]} ]]; then
        _slp_die "error: incorrect number of values for \`${_slp_label[at]}\`"
    fi
    if [[ -z ${_slp_list[at]} ]] && _slp_is_given "$at"; then
        _slp_die "error: the argument \`${_slp_name[at]}\` cannot be used multiple times"
    fi
    _slp_store "$at" "\`${_slp_notation[at]}\`"
}

_slp_take_flag() {
    local at=$1 count=0 var=${_slp_var[$1]}
    if [[ $2 == *=* ]]; then
        _slp_die "error: flag \`${_slp_name[at]}\` don't accept any value"
    fi
    if _slp_is_given "$at"; then
        if [[ -z ${_slp_multiple[at]} ]]; then
            _slp_die "error: the argument \`${_slp_name[at]}\` cannot be used multiple times"
        fi
        count=${!var}
    fi
    _slp_values=("$((count + 1))")
    _slp_store "$at" ''
}

_slp_try_help() {
    if [[ -n $_slp_done ]]; then
        return 0
    fi
    case $1 in
    --help | -help | -h)
        _slp_say "$_slp_usage"
        ;;
    --version | -version | -V)
        if [[ -n $_slp_version ]]; then
            _slp_say "$_slp_version"
        fi
        ;;
    esac
}

_slp_try_symbol() {
    local word=$1 at
    for ((at = 0; at < ${#_slp_symbols[@]}; at += 3)); do
        if [[ -z $_slp_done && ${#word} -gt 1 && ${word:0:1} == "${_slp_symbols[at]}" ]]; then
            _slp_check "\`${_slp_symbols[at]}\`" "${_slp_symbols[at + 2]}" "${word:1}"
            printf -v "${_slp_symbols[at + 1]}" %s "${word:1}"
            _slp_done=1 _slp_at=$((_slp_at + 1))
        fi
    done
}

# `-ab` is `-a -b` where the file allows it and each is a name.
_slp_try_shorts() {
    local letters=${1#-} at split=()
    if [[ -n $_slp_done || -z $_slp_combine_shorts || $1 != -??* || $1 == --* ]]; then
        return 0
    fi
    for ((at = 0; at < ${#letters}; at++)); do
        if ! _slp_contains "-${letters:at:1}" ${_slp_spellings[@]+"${_slp_spellings[@]}"}; then
            return 0
        fi
        split+=("-${letters:at:1}")
    done
    for ((at = _slp_at + 1; at < ${#_slp_words[@]}; at++)); do
        split+=("${_slp_words[at]}")
    done
    _slp_words=("${split[@]}") _slp_at=0 _slp_done=1
}

_slp_try_command() {
    local word=$1 at
    if [[ -n $_slp_done || ${#_slp_below_names[@]} -eq 0 || ${#argc__positionals[@]} -gt 0 ]]; then
        return 0
    fi
    for ((at = 0; at < ${#_slp_below_names[@]}; at++)); do
        if [[ $word == "${_slp_below_names[at]}" ]]; then
            _slp_at=$((_slp_at + 1)) _slp_done=1
            _slp_enter "${_slp_below_entries[at]}"
            return 0
        fi
    done
    if [[ $word == help ]]; then
        _slp_help_of "${_slp_words[_slp_at + 1]-}"
    fi
}

_slp_help_of() {
    local word=$1 at
    for ((at = 0; at < ${#_slp_below_names[@]}; at++)); do
        if [[ $word == "${_slp_below_names[at]}" ]]; then
            "${_slp_below_entries[at]}"
            break
        fi
    done
    _slp_say "$_slp_usage"
}

_slp_enter() {
    if [[ -z $_slp_children_check ]]; then
        _slp_settle_options
    fi
    "$1"
}

_slp_enter_default() {
    if [[ -z $_slp_default_command ]]; then
        _slp_join ', ' "${_slp_below_names[@]}"
        _slp_joined=$'\n'"  [subcommands: $_slp_joined]"
        _slp_die "error: \`$_slp_title\` requires a subcommand but one was not provided$_slp_joined"
    fi
    _slp_enter "$_slp_default_command"
}

# Options that were not given: set their substitutes, and record the missing ones.
_slp_settle_options() {
    local at
    for ((at = 0; at < ${#_slp_kind[@]}; at++)); do
        if [[ ${_slp_kind[at]} != argument ]] && ! _slp_is_given "$at"; then
            _slp_fall_back "$at"
        fi
    done
}

# Distribute the words that are not options to the arguments. A list leaves one word to each argument after it.
_slp_settle_arguments() {
    local at number=0 from=0 left=${#argc__positionals[@]} after=${#_slp_arguments[@]} takes taken=()
    if [[ $after -eq 0 ]]; then
        return 0
    fi
    for at in "${_slp_arguments[@]}"; do
        after=$((after - 1)) takes=1
        if [[ -n ${_slp_list[at]} && $((left - after)) -gt 1 ]]; then
            takes=$((left - after))
            if [[ $number -eq 0 && $_slp_dash -gt 0 && $after -eq 1 && -n ${_slp_list[at + 1]} ]]; then
                takes=$_slp_dash # two lists, parted by `--`
            fi
        fi
        if [[ $left -eq 0 ]]; then
            _slp_fall_back "$at"
        else
            _slp_values=("${argc__positionals[@]:from:takes}")
            from=$((from + takes)) left=$((left - takes))
            _slp_store "$at" "\`${_slp_notation[at]}\`"
        fi
        taken+=(${_slp_values[@]+"${_slp_values[@]}"})
        number=$((number + 1))
    done
    if [[ $left -gt 0 ]]; then
        _slp_die "error: unexpected argument \`${argc__positionals[from]}\` found"
    fi
    argc__positionals=(${taken[@]+"${taken[@]}"})
}

# Set a parameter from its variable or its default, else record it as missing if required. _slp_values is its value.
_slp_fall_back() {
    local at=$1 bound=${_slp_bound[$1]}
    _slp_values=()
    if [[ -n $bound && -n ${!bound-} ]]; then
        if [[ ${_slp_kind[at]} != flag ]]; then
            _slp_values=("${!bound}")
            _slp_store "$at" "environment variable \`$bound\` that bound to \`${_slp_label[at]}\`"
            return 0
        fi
        case ${!bound} in
        true | 1)
            _slp_values=(1)
            _slp_store "$at" ''
            ;;
        false | 0) ;;
        *)
            _slp_die "error: environment variable '$bound' has invalid value for param '${_slp_label[at]}'"
            ;;
        esac
    elif [[ -n ${_slp_default[at]} ]]; then
        _slp_evaluate "${_slp_default[at]}"
        _slp_values=("$_slp_value")
        _slp_store "$at" ''
    elif [[ -n ${_slp_required[at]} ]]; then
        _slp_missing+=$'\n'"  ${_slp_label[at]}"
    fi
}

_slp_settle_envs() {
    local at name missing=
    for ((at = 0; at < ${#_slp_envs[@]}; at++)); do
        name=${_slp_envs[at]}
        if [[ -n ${_slp_env_required[at]} && -z ${!name-} ]]; then
            missing+=$'\n'"  $name"
        fi
    done
    if [[ -n $missing ]]; then
        _slp_die "error: the following required environments were not provided:$missing"
    fi
    for ((at = 0; at < ${#_slp_envs[@]}; at++)); do
        name=${_slp_envs[at]}
        if [[ -n ${!name-} ]]; then
            _slp_check "environment variable \`$name\`" "${_slp_env_choices[at]}" "${!name}"
        elif [[ -n ${_slp_env_default[at]} ]]; then
            _slp_evaluate "${_slp_env_default[at]}"
            export "$name=$_slp_value"
        fi
    done
}

_slp_require_tools() {
    local tool missing=()
    for tool in ${_slp_tools[@]+"${_slp_tools[@]}"}; do
        if ! command -v "$tool" >/dev/null 2>&1; then
            missing+=("$tool")
        fi
    done
    if [[ ${#missing[@]} -gt 0 ]]; then
        _slp_join ' ' "${missing[@]}"
        _slp_die "error: missing tools: $_slp_joined"
    fi
}

# Give a parameter _slp_values, which are split at its delimiter and checked first. An empty label: not checked.
_slp_store() {
    local at=$1 label=$2 var=${_slp_var[$1]}
    if [[ -n ${_slp_delimiter[at]} ]]; then
        _slp_split "${_slp_delimiter[at]}"
    fi
    if [[ -n $label ]]; then
        _slp_check "$label" "${_slp_choices[at]}" ${_slp_values[@]+"${_slp_values[@]}"}
    fi
    if [[ -z ${_slp_list[at]} ]]; then
        printf -v "$var" %s "${_slp_values[0]-}"
    else
        if ! _slp_is_given "$at"; then
            eval "$var=()"
        fi
        if [[ ${#_slp_values[@]} -gt 0 ]]; then
            eval "$var+=(\"\${_slp_values[@]}\")"
        fi
    fi
    _slp_given_vars+="$var "
}

_slp_is_given() {
    [[ $_slp_given_vars == *" ${_slp_var[$1]} "* ]]
}

_slp_split() {
    local by=$1 word parts=()
    for word in ${_slp_values[@]+"${_slp_values[@]}"}; do
        while [[ $word == *"$by"* ]]; do
            parts+=("${word%%"$by"*}")
            word=${word#*"$by"}
        done
        parts+=("$word")
    done
    _slp_values=(${parts[@]+"${parts[@]}"})
}

_slp_check() {
    local label=$1 choices value
    if [[ -z $2 || $# -eq 2 ]]; then
        return 0
    fi
    _slp_evaluate "$2"
    choices=$_slp_value
    shift 2
    for value in "$@"; do
        if [[ $value == *$'\n'* || $'\n'$choices$'\n' != *$'\n'"$value"$'\n'* ]]; then
            _slp_die "error: invalid value \`$value\` for $label"$'\n'"  [possible values: ${choices//$'\n'/, }]"
        fi
    done
}

_slp_evaluate() {
    case $1 in
    function:*) _slp_value=$("${1#function:}") ;;
    *) _slp_value=${1#text:} ;;
    esac
}

_slp_contains() {
    local wanted=$1 word
    shift
    for word in "$@"; do
        if [[ $word == "$wanted" ]]; then
            return 0
        fi
    done
    return 1
}

_slp_join() {
    local by=$1
    _slp_joined=$2
    shift 2
    while [[ $# -gt 0 ]]; do
        _slp_joined+=$by$1
        shift
    done
}

_slp_die() {
    printf '%s\n' "$1" >&2
    exit 1
}

_slp_say() {
    printf '%s\n' "$1"
    exit 0
}
