#!/bin/sh
# The real servers, the official clients and Spark need a JDK (17 or newer), the first two Maven too; installs them where it may.
# With the argument `java` only what Spark needs: a Java to run, on the PATH or under JAVA_HOME.
set -e
missing=""
if [ "${1:-}" = java ]; then
  [ -x "${JAVA_HOME:-/nowhere}/bin/java" ] || command -v java >/dev/null 2>&1 || missing="openjdk-17-jre-headless"
else
  command -v java >/dev/null 2>&1 && command -v javac >/dev/null 2>&1 || missing="openjdk-17-jdk-headless"
  command -v mvn >/dev/null 2>&1 || missing="$missing maven"
fi
[ -z "$missing" ] && exit 0
echo "==> installing:$missing"
if command -v apt-get >/dev/null 2>&1 && [ "$(id -u)" = 0 ]; then
  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $missing >/dev/null
else
  echo "Please install $missing and run this again, for example: sudo apt-get install $missing" >&2
  exit 2
fi
