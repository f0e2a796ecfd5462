// gocbcore's change stream, begun over HTTP alone as go-dcp does: a line in JSON for each change.
//
//	dcp HTTP-ADDRESS[,...] USER PASSWORD BUCKET
//
// A stream that ends is opened again where it was, at the node that the newest map names.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/couchbase/gocbcore/v10"
	"github.com/couchbase/gocbcore/v10/memd"
)

const (
	limit = 60 * time.Second
	pause = 200 * time.Millisecond
)

var out sync.Mutex

func say(line map[string]any) {
	text, err := json.Marshal(line)
	if err != nil {
		panic(err)
	}
	out.Lock()
	defer out.Unlock()
	fmt.Println(string(text))
}

// position is how far the stream of one partition has come. gocbcore calls it one at a time.
type position struct {
	agent               *gocbcore.DCPAgent
	partition           uint16
	branch              gocbcore.VbUUID
	seqno               gocbcore.SeqNo
	snapshotStart, ends gocbcore.SeqNo
}

func (p *position) open() {
	for {
		ended := make(chan error, 1)
		_, err := p.agent.OpenStream(p.partition, 0, p.branch, p.seqno, 0xffffffffffffffff,
			p.snapshotStart, p.ends, p, gocbcore.OpenStreamOptions{},
			func(log []gocbcore.FailoverEntry, err error) {
				if err == nil && len(log) > 0 {
					p.branch = log[0].VbUUID
				}
				ended <- err
			})
		if err == nil {
			err = <-ended
		}
		if err == nil {
			say(map[string]any{"opened": p.partition, "from": p.seqno})
			return
		}
		say(map[string]any{"refused": p.partition, "text": err.Error()})
		var back gocbcore.DCPRollbackError
		if errors.As(err, &back) {
			p.seqno, p.snapshotStart, p.ends = back.SeqNo, back.SeqNo, back.SeqNo
			continue
		}
		time.Sleep(pause)
	}
}

func (p *position) at(seqno uint64) {
	p.seqno = gocbcore.SeqNo(seqno)
	if p.seqno == p.ends {
		p.snapshotStart = p.seqno
	}
}

func (p *position) SnapshotMarker(marker gocbcore.DcpSnapshotMarker) {
	p.snapshotStart = gocbcore.SeqNo(marker.StartSeqNo)
	p.ends = gocbcore.SeqNo(marker.EndSeqNo)
}

func (p *position) Mutation(change gocbcore.DcpMutation) {
	p.at(change.SeqNo)
	say(map[string]any{
		"key": string(change.Key), "value": json.RawMessage(change.Value),
		"partition": change.VbID, "seqno": change.SeqNo,
	})
}

func (p *position) Deletion(change gocbcore.DcpDeletion) {
	p.at(change.SeqNo)
	say(map[string]any{"removed": string(change.Key), "partition": change.VbID, "seqno": change.SeqNo})
}

func (p *position) Expiration(change gocbcore.DcpExpiration) {
	p.at(change.SeqNo)
	say(map[string]any{"removed": string(change.Key), "partition": change.VbID, "seqno": change.SeqNo})
}

func (p *position) End(_ gocbcore.DcpStreamEnd, err error) {
	say(map[string]any{"ended": p.partition, "text": fmt.Sprint(err)})
	go p.open()
}

func (p *position) SeqNoAdvanced(advance gocbcore.DcpSeqNoAdvanced)     { p.at(advance.SeqNo) }
func (p *position) CreateCollection(gocbcore.DcpCollectionCreation)     {}
func (p *position) DeleteCollection(gocbcore.DcpCollectionDeletion)     {}
func (p *position) FlushCollection(gocbcore.DcpCollectionFlush)         {}
func (p *position) CreateScope(gocbcore.DcpScopeCreation)               {}
func (p *position) DeleteScope(gocbcore.DcpScopeDeletion)               {}
func (p *position) ModifyCollection(gocbcore.DcpCollectionModification) {}
func (p *position) OSOSnapshot(gocbcore.DcpOSOSnapshot)                 {}

func main() {
	agent, err := gocbcore.CreateDcpAgent(&gocbcore.DCPAgentConfig{
		BucketName: os.Args[4],
		SeedConfig: gocbcore.SeedConfig{HTTPAddrs: strings.Split(os.Args[1], ",")},
		SecurityConfig: gocbcore.SecurityConfig{
			Auth: gocbcore.PasswordAuthProvider{Username: os.Args[2], Password: os.Args[3]},
		},
		DCPConfig: gocbcore.DCPConfig{UseExpiryOpcode: true},
	}, "test-stream", memd.DcpOpenFlagProducer)
	if err != nil {
		panic(err)
	}
	ready := make(chan error, 1)
	_, err = agent.WaitUntilReady(time.Now().Add(limit), gocbcore.WaitUntilReadyOptions{},
		func(_ *gocbcore.WaitUntilReadyResult, err error) { ready <- err })
	if err == nil {
		err = <-ready
	}
	if err != nil {
		panic(err)
	}
	config, err := agent.ConfigSnapshot()
	if err != nil {
		panic(err)
	}
	partitions, err := config.NumVbuckets()
	if err != nil {
		panic(err)
	}
	for number := 0; number < partitions; number++ {
		go (&position{agent: agent, partition: uint16(number)}).open()
	}
	select {}
}
