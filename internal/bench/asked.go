package bench

import "fmt"

// What is asked of a switchover.
const (
	floorFactor    = 1.2   // of the floor: what the way across the network may add
	tinyDowntime   = 0.150 // seconds, on the fast link
	distantRTTs    = 1.5   // on the link with the long delay, on top of the floor
	gapSlack       = 0.020 // seconds, of the client's gap beyond the downtime and a round trip
	transferFactor = 1.15  // of the time that the bytes need at the link's bandwidth
)

// judge compares what was measured with what is asked. What was not measured is not judged.
func judge(rows []Row, links []namedLink) []Asked {
	asked := []Asked{}
	for _, l := range links {
		asked = append(asked, judgeTiny(rows, l)...)
	}
	for _, l := range links {
		asked = append(asked, judgeRedis(rows, l)...)
	}
	return asked
}

func judgeTiny(rows []Row, l namedLink) []Asked {
	downtime := median(rows, workloadTiny, l.name, wayGodwit, metricDowntime)
	floor := median(rows, workloadTiny, l.name, wayFloor, metricDowntime)
	if downtime == nil || floor == nil {
		return nil
	}
	rtt := l.shape.RTT.Seconds()
	switch l.name {
	case linkFast:
		return []Asked{
			atMost(fmt.Sprintf("tiny, %s: downtime at most %.1f x floor", l.name, floorFactor), *downtime, floorFactor**floor),
			atMost(fmt.Sprintf("tiny, %s: downtime at most %.0f ms", l.name, tinyDowntime*1e3), *downtime, tinyDowntime),
		}
	case linkDistant:
		what := fmt.Sprintf("tiny, %s: downtime at most %.1f x floor + %.1f RTT", l.name, floorFactor, distantRTTs)
		return []Asked{atMost(what, *downtime, floorFactor**floor+distantRTTs*rtt)}
	}
	return nil
}

func judgeRedis(rows []Row, l namedLink) []Asked {
	asked := []Asked{}
	downtime := median(rows, workloadRedis, l.name, wayGodwit, metricDowntime)
	if beyond := median(rows, workloadRedis, l.name, wayGodwit, metricBeyond); beyond != nil {
		what := fmt.Sprintf("redis, %s: client's longest gap beyond the downtime at most 1 RTT + %.0f ms", l.name, gapSlack*1e3)
		asked = append(asked, atMost(what, *beyond, l.shape.RTT.Seconds()+gapSlack))
	}
	tiny := median(rows, workloadTiny, l.name, wayGodwit, metricDowntime)
	sent := median(rows, workloadRedis, l.name, wayGodwit, metricSent)
	if downtime != nil && tiny != nil && sent != nil {
		what := fmt.Sprintf("redis, %s: downtime at most %.2f x (bytes / bandwidth) + tiny's downtime", l.name, transferFactor)
		needed := *sent * 8 / float64(l.shape.BandwidthBitsPerSecond)
		asked = append(asked, atMost(what, *downtime, transferFactor*needed+*tiny))
	}
	return asked
}

func median(rows []Row, workload, link, way, metric string) *float64 {
	if row := find(rows, workload, link, way, metric); row != nil {
		return row.Median
	}
	return nil
}

func atMost(what string, value, limit float64) Asked {
	return Asked{What: what, Limit: limit, Value: value, Met: value <= limit}
}
