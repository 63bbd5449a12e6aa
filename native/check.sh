#!/bin/sh
# Format, lints and tests of the crate, as far as this machine has the tools.
set -e
cd "$(dirname "$0")"
why=$(sh cargo.sh)
[ -z "$why" ] || { echo "==> the compiled module is not checked: $why"; exit 0; }
has() { cargo "$1" --version >/dev/null 2>&1 || { echo "==> cargo $1 is not installed, and its check left out: rustup component add $2"; false; }; }
set -x
if has fmt rustfmt; then cargo fmt --check; fi
if has clippy clippy; then cargo clippy --quiet --locked --all-targets -- -D warnings; fi
cargo test --quiet --locked --no-default-features
