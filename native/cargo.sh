#!/bin/sh
# Says why the compiled module cannot be built here, in a few words; says nothing where it can.
oldest=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$(dirname "$0")/Cargo.toml")
command -v cargo >/dev/null 2>&1 || { echo "cargo, of Rust, is not installed"; exit; }
found=$(cargo --version 2>/dev/null | cut -d ' ' -f 2)
[ -n "$found" ] || { echo "cargo does not run"; exit; }
[ "$(printf '%s\n' "$oldest" "$found" | sort -V | head -n 1)" = "$oldest" ] || { echo "cargo is $found, and $oldest is needed"; exit; }
command -v cc >/dev/null 2>&1 || echo "there is no C compiler, which links"
