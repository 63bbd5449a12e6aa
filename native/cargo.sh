#!/bin/sh
# Prints the reason why the compiled module cannot be built on this machine; prints nothing if it can be built.
min_version=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$(dirname "$0")/Cargo.toml")
command -v cargo >/dev/null 2>&1 || { echo "cargo, of Rust, is not installed"; exit; }
found=$(cargo --version 2>/dev/null | cut -d ' ' -f 2)
[ -n "$found" ] || { echo "cargo does not run"; exit; }
[ "$(printf '%s\n' "$min_version" "$found" | sort -V | head -n 1)" = "$min_version" ] || { echo "cargo is $found, and $min_version is needed"; exit; }
command -v cc >/dev/null 2>&1 || echo "there is no C compiler, which links"
