# Makes a directory called $1 in the first place that it can, of the others that
# it is given, and prints its path. Then waits until its input ends, which is when
# the test process closes it or is gone; kills every process that works in the
# directory, and removes it. It is run by sh -c (see guard.go).
trap '' HUP INT TERM PIPE
name=$1
shift
dir=
for place; do
	if mkdir -m 755 "$place/$name" 2>/dev/null; then
		dir=$(cd "$place/$name" && pwd -P) # as /proc/PID/cwd shows it
		break
	fi
done
[ -n "$dir" ] || exit 1
echo "$dir" 2>/dev/null
exec >/dev/null
while read -r _; do :; done

# A server's processes have their working directory in its own. They are found
# again until none is left: one may fork another while it is killed.
tries=0
while [ "$tries" -lt 500 ]; do
	pids=$(find /proc/[0-9]*/cwd -maxdepth 0 \( -lname "$dir" -o -lname "$dir/*" \) 2>/dev/null | cut -d / -f 3)
	[ -n "$pids" ] || break
	kill -KILL $pids 2>/dev/null
	sleep 0.02
	tries=$((tries + 1))
done

# A killed PostgreSQL leaves a small System V segment, named in line 7 of its
# pid file as "key id". It is removed if it is still that one and nobody uses it.
for file in "$dir"/*/postmaster.pid; do
	[ -f "$file" ] || continue
	mine=$(sed -n '7s/^ *\([0-9-]*\)  *\([0-9]*\).*/\1 \2/p' "$file")
	while read -r key id _ _ _ _ attached _; do
		if [ -n "$mine" ] && [ "$key $id $attached" = "$mine 0" ]; then
			ipcrm -m "$id" 2>/dev/null
		fi
	done </proc/sysvipc/shm
done

rm -rf "$dir" 2>/dev/null
exit 0
