# Answers how often each path was asked for.
ASKED = Hash.new(0)
LOCK = Mutex.new
run lambda { |env|
  n = LOCK.synchronize { ASKED[env['PATH_INFO']] += 1 }
  [200, { 'Content-Type' => 'text/plain' }, ["#{env['PATH_INFO']} #{n}\n"]]
}
