#!/bin/sh
# Checks the format and the lints of the crate, and runs its tests. A check whose tool is not installed is skipped with a message.
set -e
cd "$(dirname "$0")"
reason=$(sh cargo.sh)
[ -z "$reason" ] || { echo "==> the compiled module is not checked: $reason"; exit 0; }
has_tool() { cargo "$1" --version >/dev/null 2>&1 || { echo "==> cargo $1 is not installed, so its check is skipped; to install it: rustup component add $2"; false; }; }
set -x
if has_tool fmt rustfmt; then cargo fmt --check; fi
if has_tool clippy clippy; then cargo clippy --quiet --locked --all-targets -- -D warnings; fi
cargo test --quiet --locked --no-default-features
