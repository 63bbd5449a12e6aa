#!/bin/sh
# The real servers, the official clients and Spark need a JDK (17 or newer), the first two Maven too; installs them where it may.
set -e
missing=""
command -v java >/dev/null 2>&1 && command -v javac >/dev/null 2>&1 || missing="openjdk-17-jdk-headless"
command -v mvn >/dev/null 2>&1 || missing="$missing maven"
[ -z "$missing" ] && exit 0
echo "==> installing:$missing"
if command -v apt-get >/dev/null 2>&1 && [ "$(id -u)" = 0 ]; then
  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $missing >/dev/null
else
  echo "Please install $missing and run this again, for example: sudo apt-get install $missing" >&2
  exit 2
fi
