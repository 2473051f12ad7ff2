// Decodes a file of length-prefixed pgoutput messages with pglogrepl, several times, and prints the seconds of processor
// time for each, which other programs on the machine don't stretch.
//
//	go run . FILE RUNS
//
// Four ways: to pglogrepl's structs; to values typed by pgx in rows that are maps, as in pglogrepl's example; in rows that
// are slices, which is faster; and in slices with json and jsonb as text, which pgx would otherwise turn into maps.
package main

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"syscall"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgtype"
)

type result struct {
	Decoder  string    `json:"decoder"`
	Messages int       `json:"messages"`
	Values   int       `json:"values"`
	Seconds  []float64 `json:"seconds"`
}

type typing int

const (
	untyped typing = iota
	typedMaps
	typed
	typedButJSON
)

type reader struct {
	how       typing
	types     *pgtype.Map
	relations map[uint32]*pglogrepl.RelationMessageV2
	values    int
	kept      any // prevents the compiler from removing unused results
}

func (r *reader) row(oid uint32, tuple *pglogrepl.TupleData) error {
	if r.how == untyped {
		r.values += len(tuple.Columns)
		r.kept = tuple
		return nil
	}
	relation := r.relations[oid]
	var named map[string]any
	var row []any
	if r.how == typedMaps {
		named = map[string]any{}
	} else {
		row = make([]any, len(tuple.Columns))
	}
	for i, column := range tuple.Columns {
		r.values++
		if column.DataType != pglogrepl.TupleDataTypeText {
			if named != nil {
				named[relation.Columns[i].Name] = nil
			}
			continue
		}
		kind := relation.Columns[i].DataType
		isJSON := kind == pgtype.JSONOID || kind == pgtype.JSONBOID
		known, ok := r.types.TypeForOID(kind)
		if !ok || (isJSON && r.how == typedButJSON) {
			row[i] = string(column.Data)
			continue
		}
		value, err := known.Codec.DecodeValue(r.types, kind, pgtype.TextFormatCode, column.Data)
		if err != nil {
			return err
		}
		if named != nil {
			named[relation.Columns[i].Name] = value
		} else {
			row[i] = value
		}
	}
	r.kept = row
	if named != nil {
		r.kept = named
	}
	return nil
}

func (r *reader) read(data []byte) (int, error) {
	messages := 0
	for at := 0; at < len(data); {
		end := at + 4 + int(binary.BigEndian.Uint32(data[at:]))
		message, err := pglogrepl.ParseV2(data[at+4:end], false)
		if err != nil {
			return 0, err
		}
		at = end
		messages++
		switch m := message.(type) {
		case *pglogrepl.RelationMessageV2:
			r.relations[m.RelationID] = m
		case *pglogrepl.InsertMessageV2:
			err = r.row(m.RelationID, m.Tuple)
		case *pglogrepl.UpdateMessageV2:
			err = r.row(m.RelationID, m.NewTuple)
		case *pglogrepl.DeleteMessageV2:
			err = r.row(m.RelationID, m.OldTuple)
		default:
			r.kept = m
		}
		if err != nil {
			return 0, err
		}
	}
	return messages, nil
}

func processorSeconds() float64 {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		panic(err)
	}
	return float64(used.Utime.Nano()+used.Stime.Nano()) / 1e9
}

func run() error {
	runtime.GOMAXPROCS(1)
	data, err := os.ReadFile(os.Args[1])
	if err != nil {
		return err
	}
	runs, err := strconv.Atoi(os.Args[2])
	if err != nil {
		return err
	}
	names := []string{
		"Go: pglogrepl, to structs",
		"Go: pglogrepl, typed by pgx, rows as maps",
		"Go: pglogrepl, typed by pgx, rows as slices",
		"Go: pglogrepl, typed by pgx, rows as slices, jsonb as text",
	}
	all := make([]result, 0, len(names))
	for how, name := range names {
		measured := result{Decoder: name}
		for range runs {
			r := reader{how: typing(how), types: pgtype.NewMap(), relations: map[uint32]*pglogrepl.RelationMessageV2{}}
			started := processorSeconds()
			if measured.Messages, err = r.read(data); err != nil {
				return err
			}
			measured.Seconds = append(measured.Seconds, processorSeconds()-started)
			measured.Values = r.values
		}
		all = append(all, measured)
	}
	return json.NewEncoder(os.Stdout).Encode(all)
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
