package tests

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// number is a type of which a reader has to know what it counts.
var number = regexp.MustCompile(`^(u?int(32|64)?|float64)$`)

// unit is a word that says so.
var unit = regexp.MustCompile(`(?i)\b(units?|keys|connections|holds|places|decisions|milliseconds?|ms|part|token|cost|` +
	`trips|day|month|day of the month|number|database)\b`)

// Every exported name of the modules has a comment, and where it is a number, or takes or returns one, the comment says
// of what.
func TestEveryExportedNameIsDocumented(t *testing.T) {
	names := 0
	check := func(where, name, comment string, types ...ast.Expr) {
		names++
		if strings.TrimSpace(comment) == "" {
			t.Errorf("%s: %s has no comment", where, name)
		}
		for _, one := range types {
			if kind, ok := one.(*ast.Ident); ok && number.MatchString(kind.Name) && !unit.MatchString(comment) {
				t.Errorf("%s: %s has a number of nobody knows what: %s", where, name, strings.TrimSpace(comment))
			}
		}
	}
	err := filepath.WalkDir("../../../src/clients/go", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, path, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		at := func(node ast.Node) string { return files.Position(node.Pos()).String() }
		for _, declared := range file.Decls {
			switch declared := declared.(type) {
			case *ast.FuncDecl:
				if declared.Name.IsExported() && (declared.Recv == nil || exported(declared.Recv.List[0].Type)) &&
					!expected[declared.Name.Name] {
					check(at(declared), declared.Name.Name, declared.Doc.Text(), signature(declared.Type)...)
				}
			case *ast.GenDecl:
				for _, spec := range declared.Specs {
					switch spec := spec.(type) {
					case *ast.TypeSpec:
						if !spec.Name.IsExported() {
							continue
						}
						comment := spec.Doc.Text() + declared.Doc.Text()
						check(at(spec), spec.Name.Name, comment)
						for _, member := range members(spec.Type) {
							for _, name := range member.Names {
								if name.IsExported() {
									own := member.Doc.Text() + member.Comment.Text()
									if _, ok := member.Type.(*ast.FuncType); !ok && own == "" {
										own = comment // of a struct all of whose fields it explains
									}
									check(at(member), spec.Name.Name+"."+name.Name, own, member.Type)
								}
							}
						}
					case *ast.ValueSpec:
						for _, name := range spec.Names {
							if name.IsExported() {
								check(at(spec), name.Name, spec.Doc.Text()+spec.Comment.Text()+declared.Doc.Text())
							}
						}
					}
				}
			}
		}
		return nil
	})
	if err != nil || names < 100 {
		t.Error(names, err)
	}
}

// expected are methods that an interface of the language explains.
var expected = map[string]bool{"Error": true, "Unwrap": true}

func exported(receiver ast.Expr) bool {
	if pointer, ok := receiver.(*ast.StarExpr); ok {
		receiver = pointer.X
	}
	name, ok := receiver.(*ast.Ident)
	return ok && name.IsExported()
}

// signature has the types of what a function takes and returns.
func signature(function *ast.FuncType) (types []ast.Expr) {
	for _, list := range []*ast.FieldList{function.Params, function.Results} {
		if list != nil {
			for _, field := range list.List {
				types = append(types, field.Type)
			}
		}
	}
	return types
}

// members are the fields of a struct, or the methods of an interface.
func members(declared ast.Expr) []*ast.Field {
	switch declared := declared.(type) {
	case *ast.StructType:
		return declared.Fields.List
	case *ast.InterfaceType:
		return declared.Methods.List
	}
	return nil
}
