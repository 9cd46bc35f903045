<?php
// Answers how often each path was asked for: counts in files, under locks.
$path = $_SERVER['REQUEST_URI'];
$file = fopen('/tmp/count-' . (int) substr($path, 1), 'c+');
flock($file, LOCK_EX);
$n = (int) fread($file, 20) + 1;
rewind($file);
fwrite($file, (string) $n);
fclose($file);
echo "$path $n\n";
