#!/bin/sh
# Starts MariaDB and then Gitea, which has its data there and in its directory.
set -eu
mariadbd --user=mysql --skip-networking &
until mariadb --execute="CREATE DATABASE IF NOT EXISTS gitea" 2>/tmp/mariadb; do sleep 0.2; done
gitea migrate
gitea admin user create --admin --username=owner --password=secret-word --email=owner@localhost --must-change-password=false
exec gitea web
